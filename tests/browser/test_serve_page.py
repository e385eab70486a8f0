"""The page of ``fsm-agent serve`` as a person uses it, in a real browser and with a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.acting import expect
from tests.browser.axe import violations
from tests.browser.conftest import Browser
from tests.serve.processes import ServerProcess

pytest.importorskip("ag_ui")
pytestmark = pytest.mark.slow
WORDS = [f"word{number}" for number in range(40)]


@pytest.fixture
def server(tmp_path: Path, home: Path) -> Iterator[ServerProcess]:
    """Tests name it before ``browser``: the pages are closed first, as one whose server ends logs an error."""
    with ServerProcess(tmp_path, home, "--app", "tests.browser.agui_app:make_agent") as started:
        yield started


def opened(browser: Browser, server: ServerProcess, thread: str = "", **options: Any) -> Any:
    behind = f"&thread={thread}" if thread else ""
    page = browser.visit(f"{server.url}/#token={server.token}{behind}", **options)
    page.get_by_label("your message").wait_for()
    return page


def ask(page: Any, words: str) -> None:
    page.get_by_role("button", name="Send").wait_for()  # a message is sent once the turn before has ended
    page.get_by_label("your message").fill(words)
    page.keyboard.press("Enter")


def lights(page: Any, state: str) -> None:
    """The map shows this state, or will soon."""
    page.locator(f".map .state.now[data-state={state}]").wait_for(state="attached")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_chat_with_a_tool_an_approval_and_a_question(
    server: ServerProcess, browser: Browser, width: int, dark: bool
) -> None:
    page = opened(browser, server, width=width, dark=dark)
    assert violations(page) == []
    ask(page, "how is the weather?")
    page.get_by_text("take a coat").wait_for()
    page.locator(".message strong", has_text="12 degrees").wait_for()
    link = page.get_by_role("link", name="link")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(page.locator(".message b", has_text="no")).to_have_count(0)  # markup of a model stays text
    page.locator(".call.ok", has_text="look_up").click()
    page.get_by_label("result").get_by_text("In Oslo it is 12 degrees.").wait_for()
    lights(page, "Finalize")
    expect(page.locator(".map .state.seen")).to_have_count(5)
    assert violations(page) == []

    ask(page, "write a mail")
    page.get_by_role("heading", name="May send_mail run?").wait_for()
    lights(page, "ExecuteTools")
    expect(page.get_by_label("what would run")).to_contain_text("See you soon.")
    assert violations(page) == []
    page.get_by_role("button", name="Allow once").click()
    page.get_by_text("The mail: sent to ann@example.org").wait_for()
    expect(page.get_by_role("heading", name="May send_mail run?")).to_have_count(0)

    ask(page, "let me choose")
    page.get_by_text("Which one?", exact=True).wait_for()
    page.get_by_label("your answer").fill("water")
    assert violations(page) == []
    page.get_by_role("button", name="Answer").click()
    page.get_by_text(re.compile("You chose:.*water")).wait_for()

    if width < 980:
        page.get_by_role("button", name="Turn").click()
        page.get_by_role("region", name="the turn").wait_for()
        assert violations(page) == []
        page.get_by_role("button", name="Turn").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_reload_in_mid_turn_shows_everything_once(server: ServerProcess, browser: Browser) -> None:
    page = opened(browser, server)
    ask(page, "something long")
    page.locator(".call.running").wait_for()
    page.reload()
    page.locator(".call.running").wait_for()
    lights(page, "ExecuteTools")
    page.get_by_text("word39").wait_for()
    said = page.get_by_role("log").inner_text()
    assert [said.count(f"{one} ") for one in WORDS[:-1]] == [1] * 39
    assert said.count("something long") == said.count("It takes a while.") == said.count("wait\n") == 1
    expect(page.locator(".path li")).to_have_count(6)
    # an approval is there after a reload, too, and in another tab
    ask(page, "write a mail")
    page.get_by_role("button", name="Allow once").wait_for()
    page.reload()
    thread = re.search("thread=([^&]+)", page.url)
    assert thread is not None
    other = opened(browser, server, thread[1])
    other.get_by_role("button", name="Deny").click()
    other.locator(".call.denied").wait_for()
    page.reload()
    page.get_by_text("The mail:").wait_for()
    expect(page.get_by_role("button", name="Allow once")).to_have_count(0)


def test_the_keyboard_alone(server: ServerProcess, browser: Browser) -> None:
    page = opened(browser, server)
    page.keyboard.type("write a mail")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Allow once", disabled=False).wait_for()  # once its run has ended
    focused = "document.activeElement.textContent"
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        if page.evaluate(focused) == "Allow once":
            break
    assert page.evaluate(focused) == "Allow once"
    page.keyboard.press("Enter")
    page.get_by_text("The mail: sent").wait_for()
    expect(page.get_by_label("your message")).to_be_focused()
    page.get_by_role("button", name="Send").wait_for()
    page.keyboard.type("something long")
    page.keyboard.press("Enter")
    page.locator(".call.running").wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_text("Stopped.").wait_for()
    page.get_by_role("button", name="New chat").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Ask something.").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("The mail: sent").wait_for()


def test_a_server_that_ends_is_waited_for(browser: Browser, tmp_path: Path, home: Path) -> None:
    with ServerProcess(tmp_path, home, "--app", "tests.browser.agui_app:make_agent") as first:
        port, token = first.url.rpartition(":")[2], first.token
        page = opened(browser, first)
        ask(page, "write a mail")
        page.get_by_role("button", name="Allow once").wait_for()
        browser.forgive(re.compile("ERR_|401|Failed to load"))
        first.kill()
    with ServerProcess(
        tmp_path, home, "--app", "tests.browser.agui_app:make_agent", "--port", port
    ) as second:
        assert second.token != token
        page.get_by_role("button", name="Allow once").click()
        page.get_by_text("the key is wrong").wait_for()
        again = opened(browser, second, re.search("thread=([^&]+)", page.url)[1])
        again.get_by_role("button", name="Allow once").click()
        again.get_by_text("The mail: sent to ann@example.org").wait_for()


def test_a_wrong_key_is_asked_for_again(server: ServerProcess, browser: Browser) -> None:
    browser.forgive(re.compile("401"))
    page = browser.visit(f"{server.url}/#token=wrong")
    page.get_by_text("the key is wrong").wait_for()
    assert violations(page) == []
    page.get_by_label("Key").fill(server.token)
    page.keyboard.press("Enter")
    page.get_by_label("your message").wait_for()
    expect(page).not_to_have_url(re.compile("token"))
