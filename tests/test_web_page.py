"""The example page in a real browser: text arrives piece by piece, and Stop stops the model.

Needs Chromium; without one the tests say so. With `UNSPOOL_SCREENSHOT=path` a picture of the page is kept.
"""

from __future__ import annotations

import copy
import os
import runpy
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
import uvicorn

from smollm2 import INSTALLED, smollm2_or_tiny
from tiny import tiny_model, tiny_tokenizer
from unspool.stepping import close_all

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EXAMPLE = Path(__file__).parent.parent / "examples" / "web_app.py"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="There is no Chromium: apt-get install chromium")


class Served:
    def __init__(self, model, tokenizer, delay):
        self.forwards = 0
        self._delay = delay
        self._hook = model.register_forward_pre_hook(self._before)
        app = runpy.run_path(str(EXAMPLE))["create_app"](model, tokenizer)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        quiet = dict(log_level="critical", lifespan="off", ws="none")
        self._server = uvicorn.Server(uvicorn.Config(app, **quiet))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def _before(self, *_):
        self.forwards += 1
        time.sleep(self._delay)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(20)
        self._hook.remove()
        close_all()


@pytest.fixture
def page():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 860, "height": 460})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def tiny():
    model = tiny_model()
    model.generation_config.eos_token_id = None
    tokenizer = copy.copy(tiny_tokenizer())
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return model, tokenizer


def test_text_appears_piece_by_piece_and_stop_stops_the_model_within_two_steps(page):
    with Served(*tiny(), delay=0.1) as served:
        page.goto(served.url)
        page.fill("#prompt", "w5 w6")
        page.click("#send")
        page.wait_for_selector("#answer span")
        early = page.locator("#answer").inner_text()
        page.wait_for_function("document.querySelectorAll('#answer span').length >= 5")
        later = page.locator("#answer").inner_text()
        assert later.startswith(early.rstrip())
        assert len(later) > len(early)
        before = served.forwards
        page.click("#stop")
        page.wait_for_function("document.getElementById('status').textContent === 'Stopped.'")
        time.sleep(0.5)
        assert served.forwards <= before + 3  # two, and one for the time that the click takes
        stopped = served.forwards
        time.sleep(0.3)
        assert served.forwards == stopped


def test_each_token_has_a_colour_and_its_alternatives(page):
    with Served(*tiny(), delay=0.0) as served:
        page.goto(served.url)
        page.fill("#prompt", "w5 w6")
        page.click("#send")
        page.wait_for_function("document.getElementById('status').textContent.includes('ended by')")
        first = page.locator("#answer span").first
        assert first.get_attribute("title").count("\n") == 4
        assert "hsl" in first.get_attribute("style") or "rgb" in first.get_attribute("style")
        assert "200 tokens; ended by max_length" in page.locator("#status").inner_text()


def test_what_is_refused_is_told_on_the_page(page):
    with Served(*tiny(), delay=0.0) as served:
        page.goto(served.url)
        page.fill("#prompt", "w5 " * 2500)
        page.click("#send")
        page.wait_for_function("document.getElementById('status').textContent.includes('are allowed here')")


@pytest.mark.skipif(not INSTALLED or "UNSPOOL_SCREENSHOT" not in os.environ, reason="makes a picture, when asked to")
def test_a_picture_of_the_page_is_kept(page):
    with Served(*smollm2_or_tiny(), delay=0.0) as served:
        page.goto(served.url)
        page.click("#send")
        page.wait_for_function("document.querySelectorAll('#answer span').length >= 60")
        page.screenshot(path=os.environ["UNSPOOL_SCREENSHOT"])
        page.click("#stop")
