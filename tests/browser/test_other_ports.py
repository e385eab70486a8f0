"""A server on another port of 127.0.0.1, whose page is open in the same browser, gets nothing of the debugger's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Browser
from tests.browser.scenes import failed_turn, workshop_of
from tests.helpers.http_server import Answer, Asked, HttpServer

pytestmark = pytest.mark.slow

ATTACK = """
const target = "TARGET", turn = "TURN", got = {};
const read = async (name, work) => {
  try { got[name] = await Promise.race([work(), new Promise((_, no) => setTimeout(no, 3000, "late"))]); }
  catch (error) { got[name] = "refused: " + error; }
};
const asked = (path, options) => async () => (await fetch(target + path, options)).text();
const loaded = (element) => new Promise((yes, no) => {
  element.onload = () => yes("loaded"); element.onerror = () => no("not loaded"); document.body.append(element);
});
window.work = async () => {
  await read("cookies", async () => document.cookie);
  await read("storage", async () => JSON.stringify({ ...sessionStorage, ...localStorage }));
  await read("hello", asked("api/hello", { credentials: "include" }));
  await read("guess", asked("api/hello", { headers: { "x-fsm-agent-token": "x" } }));
  await read("blind", asked("api/hello", { credentials: "include", mode: "no-cors" }));
  await read("turn", asked(`api/turns/${turn}`, { credentials: "include" }));
  await read("post", asked(`api/turns/${turn}/fork`, { method: "POST", mode: "no-cors", credentials: "include", body: "{}" }));
  await read("events", () => new Promise((yes, no) => {
    const source = new EventSource(`${target}api/turns/${turn}/events`, { withCredentials: true });
    source.onmessage = (message) => yes(message.data);
    source.onerror = () => no("closed");
  }));
  await read("frame", async () => {
    const frame = document.createElement("iframe");
    frame.src = target;
    await loaded(frame);
    return frame.contentWindow.sessionStorage.getItem("fsm-agent-token");
  });
  await read("script", () => loaded(Object.assign(document.createElement("script"), { type: "module", src: `${target}static/api.js` })));
  await read("window", async () => {
    const other = open(target);
    await new Promise((yes) => setTimeout(yes, 500));
    return other.sessionStorage.getItem("fsm-agent-token");
  });
  return got;
};
"""


class OtherServer(HttpServer):
    """Another program's server, on its own port. Keeps the headers of every request."""

    def __init__(self, script: str) -> None:
        self.heard: list[str] = []
        page = f"<!doctype html><body><script>{script}</script></body>".encode()

        def answer(asked: Asked) -> Answer:
            self.heard.append(f"{asked.path}\n{asked.said}")
            return Answer(200, page, "text/html")

        super().__init__(answer)


@pytest.fixture
def pages(chromium: Any) -> Iterator[Any]:
    """A browser of a person who has both pages open."""
    context = chromium.new_context()
    yield context
    context.close()


def test_nothing_of_the_page_is_another_ports(pages: Any, browser: Browser, home: Path) -> None:
    turn = failed_turn(home)
    served = browser.serve(workshop_of(home, []), turn)
    page = pages.new_page()
    page.goto(served.url)
    page.wait_for_selector("#map [id^=state-]")
    assert served.token not in page.url
    assert page.evaluate("sessionStorage.getItem('fsm-agent-token')") == served.token
    assert pages.cookies() == []

    keeps = "{...sessionStorage, ...localStorage, cookies: document.cookie}"
    with OtherServer(ATTACK.replace("TARGET", served.address).replace("TURN", turn)) as other:
        hostile, url = pages.new_page(), f"{other.root}/"
        hostile.goto(url)
        got = hostile.evaluate("work()")
        page.evaluate("url => fetch(url, {mode: 'no-cors', credentials: 'include'}).catch(() => 0)", url)
        page.goto(url)  # a person who follows a link from the debugger
        left = page.evaluate(f"JSON.stringify({keeps})")
    assert (got.pop("cookies"), got.pop("storage")) == ("", "{}")
    assert got.pop("blind") in ("", "refused: TypeError: Failed to fetch")  # not readable
    assert [name for name, value in got.items() if not str(value).startswith("refused: ") and value] == []
    seen = json.dumps([got, left, other.heard])
    assert served.token not in seen
    assert "cookie:" not in seen.lower()
    assert served.address not in seen  # no word of where they came from


def test_a_tab_keeps_the_token_when_it_is_loaded_again_and_no_other_tab_has_it(
    pages: Any, browser: Browser, home: Path
) -> None:
    served = browser.serve(workshop_of(home, []), failed_turn(home))
    page = pages.new_page()
    page.goto(served.url)
    page.wait_for_selector("#map [id^=state-]")
    page.reload()
    page.wait_for_selector("#map [id^=state-]")
    second = pages.new_page()
    second.goto(served.address)
    second.get_by_text("use the whole address that was printed").wait_for()
    # an address with another token is taken over the old one
    third = pages.new_page()
    third.goto(served.url.replace(served.token, "of-an-older-debugger"))
    third.get_by_text("use the whole address that was printed").wait_for()
    third.goto(served.url)
    third.wait_for_selector("#map [id^=state-]")
