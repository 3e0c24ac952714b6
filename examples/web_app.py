"""A page that shows an answer as it arrives, each token coloured by its probability, and can really stop the model.

make web
"""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from unspool import generate_stream
from unspool.web import BodyLimit, Limits, Slots, sse_response


class Question(BaseModel):
    prompt: str = Field(min_length=1)
    max_new_tokens: int = 200


def create_app(model, tokenizer) -> FastAPI:
    app = FastAPI(title="unspool")
    app.add_middleware(BodyLimit, max_bytes=20_000)
    limits, slots = Limits(prompt_tokens=2_000, new_tokens=500), Slots(4)
    page = Path(__file__).with_suffix(".html").read_text()

    @app.get("/", response_class=HTMLResponse)
    def index():
        return page

    @app.post("/answer")
    def answer(question: Question):  # not async: tokenizing runs in a thread of FastAPI's
        messages = [{"role": "user", "content": question.prompt}]
        asked = dict(add_generation_prompt=True, return_tensors="pt", return_dict=True)
        inputs = tokenizer.apply_chat_template(messages, **asked)
        limits.check(prompt_tokens=inputs["input_ids"].shape[1], new_tokens=question.max_new_tokens)
        stream = generate_stream(model, **inputs, tokenizer=tokenizer, max_new_tokens=question.max_new_tokens)
        return sse_response(stream, tokenizer=tokenizer, records="steps", top_logprobs=5, slots=slots)

    return app


if __name__ == "__main__":
    import uvicorn

    from unspool.cli import load_model

    uvicorn.run(create_app(*load_model()), host="127.0.0.1", port=8000)
