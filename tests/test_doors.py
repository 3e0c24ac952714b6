"""Other ways in and out: `custom_generate` both ways, the recipe for the Hub, best of n, loops of a model's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig, WhisperForConditionalGeneration

from tiny import BOS, EOS, PAD, prompt, tiny_model, tiny_tokenizer
from unspool import Stream, best_of, custom_generate, generate, generate_stream
from unspool.errors import ArgumentError, UnsupportedError

RECIPE = Path(__file__).parents[1] / "recipes" / "unspool"


@pytest.mark.parametrize("asked", [{}, {"do_sample": True}, {"num_beams": 3, "num_return_sequences": 2}])
def test_transformers_gives_a_stream_that_equals_its_own_output(asked):
    model = tiny_model().requires_grad_(True)
    torch.manual_seed(1)
    expected = model.generate(**prompt(2), max_new_tokens=5, **asked)
    torch.manual_seed(1)
    stream = model.generate(**prompt(2), max_new_tokens=5, custom_generate=custom_generate, **asked)
    assert isinstance(stream, Stream)
    for step in stream:
        assert torch.is_grad_enabled()
        assert not step.logits.requires_grad
    assert torch.equal(stream.result.sequences, expected)


def test_the_tokenizer_is_not_lost_on_the_way():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    word = f"w{int(model.generate(**prompt(), max_new_tokens=3)[0, -1])}"
    stream = model.generate(
        **prompt(), max_new_tokens=9, custom_generate=custom_generate, tokenizer=tokenizer, stop_strings=[word]
    )
    assert word not in "".join(chunk.text for chunk in stream.text())
    assert stream.result.steps == 3


@pytest.mark.filterwarnings("ignore")
def test_the_assistant_is_not_lost_on_the_way():
    model = tiny_model()
    stream = model.generate(
        **prompt(), max_new_tokens=9, custom_generate=custom_generate, assistant_model=tiny_model(), do_sample=False
    )
    assert stream.to().accepted > 0


def loop(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
    """A decoding loop as one writes it for transformers."""
    for _ in range(3):
        logits = model(input_ids).logits[:, -1]
        yield logits
        input_ids = torch.cat([input_ids, logits.argmax(-1)[:, None]], dim=-1)


def test_a_generator_function_for_transformers_runs_with_gradients_off():
    model = tiny_model().requires_grad_(True)
    yielded = list(generate(model, prompt()["input_ids"], custom_generate=loop, max_new_tokens=3))
    assert [logits.requires_grad for logits in yielded] == [False] * 3


def test_a_plain_function_for_transformers_runs_unchanged():
    def last(model, input_ids, *args, **kwargs):
        return input_ids + 1

    ids = prompt()["input_ids"]
    named = {"logits_processor": None, "stopping_criteria": None}
    assert torch.equal(generate(tiny_model(), ids, custom_generate=last, **named, max_new_tokens=2), ids + 1)
    with pytest.raises(ArgumentError, match="seed"):
        generate(tiny_model(), ids, custom_generate=last, seed=1)


def test_the_recipe_gives_a_stream():
    model = tiny_model()
    stream = model.generate(**prompt(), custom_generate=str(RECIPE), trust_remote_code=True, max_new_tokens=4)
    assert torch.equal(stream.to().sequences, model.generate(**prompt(), max_new_tokens=4))


def test_best_of_ranks_the_samples_of_each_prompt_by_their_mean_logprob():
    stream, ranking = best_of(tiny_model(), **prompt(2), n=3, max_new_tokens=4, seed=1, eos_token_id=None)
    total = sum(step.logprobs for step in stream) / 4
    for number, candidates in enumerate(ranking.ranking):
        scores = [candidate.score for candidate in candidates]
        assert scores == sorted(scores, reverse=True)
        for candidate in candidates:
            row = number * 3 + candidate.sample
            assert list(candidate.ids) == stream.result.tokens[row].tolist()
            assert candidate.score == pytest.approx(float(total[row]), abs=1e-4)


def test_best_of_takes_a_score_of_the_callers():
    stream, ranking = best_of(tiny_model(), **prompt(), n=4, score=lambda c: -sum(c.ids), max_new_tokens=3, seed=2)
    stream.to()
    assert sum(ranking.best[0].ids) == min(sum(c.ids) for c in ranking.ranking[0])
    with pytest.raises(ArgumentError, match="n=0"):
        best_of(tiny_model(), **prompt(), n=0)


@pytest.fixture
def whisper():
    """A class with a loop of its own around the common one."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 160, "num_mel_bins": 8}
    special = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": 3}
    config = WhisperConfig(**sizes, **heads, **special, max_source_positions=20, max_target_positions=64)
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config.no_timestamps_token_id = 150
    return model


def test_a_model_with_a_loop_of_its_own_streams_and_equals_it(whisper):
    features = torch.randn(2, 8, 40)
    expected = whisper.generate(features, max_new_tokens=6)
    forwards = []
    whisper.model.decoder.register_forward_pre_hook(lambda *_: forwards.append(1))
    stream = generate_stream(whisper, features, max_new_tokens=6)
    for number, _ in enumerate(stream, start=1):
        assert len(forwards) == number
    assert torch.equal(stream.result.output, expected)
    assert torch.equal(generate(whisper, features, max_new_tokens=6), expected)


def test_leaving_a_loop_of_the_models_own_stops_it(whisper):
    forwards = []
    whisper.model.decoder.register_forward_pre_hook(lambda *_: forwards.append(1))
    with generate_stream(whisper, torch.randn(1, 8, 40), max_new_tokens=20) as stream:
        next(stream)
    assert torch.is_grad_enabled()
    assert len(forwards) == 1
    assert stream.result.steps == 1


class Closed(LlamaForCausalLM):
    """Its `generate` shares nothing with the common one."""

    def generate(self, inputs, **kwargs):
        return self(inputs).logits.argmax(-1)


def test_a_loop_that_cannot_be_suspended_is_refused_at_the_call():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with pytest.raises(UnsupportedError, match="Closed has a generation loop of its own"):
        generate_stream(Closed(LlamaConfig(vocab_size=32, **sizes)), torch.ones(1, 2, dtype=torch.long))
