"""What the list of moves names, what a filter leaves, and where an edited message begins a fork."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.testing import call as called
from fsm_agent.testing import repeat, text, tools
from tests.browser import scenes
from tests.browser.acting import choose, engine, expect, looks_at, more
from tests.browser.conftest import Browser

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def noting(body: dict[str, Any]) -> Any:
    """Note the number that the user names, then repeat what was noted."""
    rows = body["messages"]
    if rows[-1]["role"] == "tool":
        return text(f"so it is: {rows[-1]['content']}")
    return tools(called("note", {"number": int(rows[-1]["content"].split()[-1])}))


def served(browser: Browser, home: Path) -> tuple[str, Any]:
    workshop = scenes.workshop_of(home, repeat(noting))
    turn = scenes.apart(lambda: scenes.agent_of(home, repeat(noting)).run_conversation("note 7").turn_id)
    return turn, browser.serve(workshop, turn)


def test_a_move_names_its_call_and_its_tokens_and_a_filter_leaves_those_of_a_tool(
    browser: Browser, home: Path
) -> None:
    turn = scenes.long_turn(home, 12)
    page = browser.open(browser.serve(scenes.workshop_of(home, repeat(noting)), turn).url)
    page.get_by_label("only moves that called").select_option("note")
    page.get_by_text("12 moves of").wait_for()
    rows = page.locator(".move-row")
    expect(rows.locator(".num + .state-name")).to_have_text(["ExecuteTools"] * rows.count())
    page.get_by_label("only moves with this text").fill("noted 11")
    page.get_by_text("1 move of").wait_for()
    expect(rows.locator(".because")).to_have_text(["note(number: 11)"])
    page.get_by_label("only moves that called").select_option("")
    page.get_by_label("only moves with this text").fill("")
    row = page.locator(".move-row", has_text="ExecuteTools")
    row.locator(".tokens", has_text=re.compile("^15$")).first.wait_for()
    found = page.get_by_label("search moves, requests and replies")
    found.fill("noted")
    for number in range(1, 10):
        found.press("Enter")
        expect(page.locator(".hits-count")).to_have_text(re.compile(f"^{number} of"))
    current, list_of_hits = (
        page.locator(".hits .current").bounding_box(),
        page.locator(".hits").bounding_box(),
    )
    assert list_of_hits["y"] <= current["y"] <= list_of_hits["y"] + list_of_hits["height"] - current["height"]


def test_an_edited_message_of_an_ended_turn_is_asked_anew(browser: Browser, home: Path) -> None:
    page = browser.open(served(browser, home)[1].url)
    choose(page, "Messages")
    page.get_by_label("edit user message 0 and run again").click()
    page.get_by_text("Message #0 was first read after").wait_for()
    page.get_by_role("dialog").get_by_role("textbox", name="text").fill("note 9")
    page.get_by_role("button", name="Fork and run").click()
    page.get_by_text("so it is: noted 9").filter(visible=True).first.wait_for()
    engine(page, "ended")


def test_an_edited_answer_takes_the_place_of_the_models(browser: Browser, home: Path) -> None:
    page = browser.open(served(browser, home)[1].url)
    choose(page, "Messages")
    page.get_by_label("edit assistant message 3 and run again").click()
    page.get_by_text("Message #3 is the model's answer").wait_for()
    page.get_by_label("answer by hand").fill("so be it")
    page.get_by_role("button", name="Fork and run").click()
    page.get_by_text("so be it").filter(visible=True).first.wait_for()
    engine(page, "ended")


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_covers_the_map_and_names_are_readable(browser: Browser, home: Path, width: int) -> None:
    page = browser.open(served(browser, home)[1].url, width=width)
    looks_at(page, "of")
    switch = page.locator(".switch").first.bounding_box()
    for text_of_map in page.locator("#map text").all():
        box = text_of_map.bounding_box()
        if box is None or not box["width"]:
            continue
        apart = (
            box["x"] + box["width"] <= switch["x"]
            or switch["x"] + switch["width"] <= box["x"]
            or box["y"] + box["height"] <= switch["y"]
            or switch["y"] + switch["height"] <= box["y"]
        )
        assert apart, text_of_map.inner_text()
        assert box["height"] >= 9
    expect(page.locator(".lane-names li").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_menus_that_open_a_dialog_end_in_dots(browser: Browser, home: Path) -> None:
    page = browser.open(served(browser, home)[1].url)
    page.get_by_label("more", exact=True).click()
    assert all(name.endswith("…") for name in page.locator(".menu .drop button").all_inner_texts())
    page.keyboard.press("Escape")
    more(page, "Export the run")
    page.get_by_role("dialog").wait_for()
