"""A table of the user's own on the page: the map of its states, its turns, its requests; and a table that is
played by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from examples import nested
from examples.review_loop import TABLE, workflow
from fsm_agent.debug import DebugSession
from fsm_agent.debug.core.pending_request import manual_workflow
from tests.browser.acting import choose, engine, expect, fork_with, more, press
from tests.browser.conftest import Browser
from tests.browser.test_page import NAMELESS, OVERLAPS

pytestmark = pytest.mark.slow


def own(home: Path) -> DebugSession:
    return DebugSession.of_workflow(workflow(home=home))


def test_a_review_is_stepped_looked_at_and_forked(browser: Browser, home: Path) -> None:
    workshop = own(home)
    page = browser.open(browser.serve(workshop, workshop.start("Say what a cat is.").id).url)
    names = ["Draft", "Criticise", "Revise", "Close"]
    assert [page.locator(f"#state-{name} .name").count() for name in names] == [1] * 4
    expect(page.locator(".lane-names li")).to_have_text(names)
    expect(page.get_by_role("tab")).to_have_text(["Move", "State", "Breaks"])

    # run to the first objection, and see what was said
    page.locator("#arrow-Criticise-Revise .label").click()
    page.locator("#arrow-Criticise-Revise[aria-pressed=true]").wait_for()
    press(page, "c", runs="paused.*Revise.*2 moves")
    inspector = page.get_by_label("inspector")
    expect(inspector).to_contain_text("rounds left")
    expect(inspector).to_contain_text("REVISE Which?")
    choose(page, "State")
    expect(page.locator(".counters .changed")).to_have_text("rounds 0 1 / 3", use_inner_text=True)
    inspector.get_by_text("objections", exact=True).wait_for()
    expect(inspector).not_to_contain_text("limits")  # they are said with the counters already

    # one request, then out of the state, then back
    choose(page, "Move")
    page.keyboard.press("i")
    page.locator(".reason", has_text="Ask done").wait_for()
    press(page, "o", runs="paused.*Criticise.*3 moves")
    press(page, "b", shows="2 of 3.*Revise")
    press(page, "End", "c", runs="ended")
    page.get_by_label("how the turn ended").get_by_text("Completed: accepted").wait_for()

    # fork with another counter, and compare
    press(page, "b", "b", shows="2 of 4")
    fork_with(page, "rounds", "3")
    engine(page, "paused.*Revise.*2 moves")
    choose(page, "Breaks")
    page.get_by_label("before each request of a state").check()
    page.keyboard.press("c")
    card = page.get_by_role("alertdialog", name="A request is about to be made")
    card.get_by_text("A reviewer says").wait_for()
    card.get_by_role("button", name="answer by hand").click()
    card.get_by_label("answer by hand", exact=True).last.fill("A machine.")
    card.get_by_role("button", name="give this answer").click()
    page.get_by_label("how the turn ended").get_by_text("Failed: stalemate").wait_for()
    page.get_by_label("more", exact=True).click()
    expect(page.get_by_role("button", name="Make a pytest")).to_have_count(0)
    page.get_by_role("button", name="Compare with …").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("completed")).click()
    page.get_by_text(
        "2 moves in common before the fork · first different answer: move 3 · first different move: 3"
    ).wait_for()


def test_a_new_turn_an_export_and_its_import(browser: Browser, home: Path, tmp_path: Path) -> None:
    workshop = own(home)
    page = browser.open(browser.serve(workshop, workshop.start("").id).url)
    page.locator(".picker summary").click()
    page.get_by_role("button", name="new turn").click()
    page.get_by_role("dialog").get_by_text("A turn of “review”").wait_for()
    page.get_by_label("message", exact=True).fill("Say what a dog is.")
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    page.locator(".picker .asked", has_text="Say what a dog is.").first.wait_for()
    press(page, "c", runs="ended")
    page.get_by_role("button", name="show the whole table").click()
    page.locator(".table-view [data-event='accepted'].taken").wait_for()
    more(page, "Export the run")
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile("^save as")).click()
    download.value.save_as(tmp_path / "run.jsonl")
    page.get_by_role("button", name="close", exact=True).click()
    more(page, "Import a run")
    page.get_by_label("exported file").set_input_files(tmp_path / "run.jsonl")
    page.get_by_role("dialog").get_by_role("button", name="Import").click()
    expect(page.locator(".ending")).to_contain_text("accepted")


def test_a_table_is_played_by_hand(browser: Browser, home: Path) -> None:
    workshop = DebugSession.of_workflow(manual_workflow(TABLE, {"rounds": 1}, home))
    page = browser.open(browser.serve(workshop, workshop.start("").id).url)
    page.keyboard.press("c")
    objects = ("Criticise", "objections")
    for state, event in (("Draft", "written"), objects, ("Revise", "written"), objects):
        card = page.get_by_role("alertdialog", name=f"What does {state} report?")
        card.get_by_role("button", name=f"report {event}", exact=True).click()
    page.get_by_label("how the turn ended").get_by_text("Ended: rounds spent").wait_for()


@pytest.mark.parametrize("size", [(1280, 800), (1024, 768), (768, 1024)])
def test_its_map_is_readable(browser: Browser, home: Path, size: tuple[int, int]) -> None:
    """No text on the map is smaller than eight pixels, nothing lies on anything else, and all of it is in
    sight."""
    workshop = own(home)
    page = browser.open(browser.serve(workshop, workshop.start("").id).url, *size)
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(OVERLAPS) == []
    boxes: list[Any] = page.evaluate(
        "() => [...document.querySelectorAll('#map .box')].map((one) => one.getBoundingClientRect())"
        ".map((one) => [one.left, one.top, one.right, one.bottom])"
    )
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= size[0]
        for a, b, c, d in boxes[number + 1 :]:
            assert not (a < right and left < c and b < bottom and top < d)
    smallest = page.evaluate(
        "() => Math.min(...[...document.querySelectorAll('#map .label')].map((one) =>"
        " one.getBoundingClientRect().height))"
    )
    assert smallest >= 8


COVERED = """() => [...document.querySelectorAll("#map [id^=arrow-]")].filter((one) => {
    const line = one.querySelector(".line").getBBox(), halo = one.querySelector(".halo").getBBox();
    return line.height < 2 && halo.width > line.width - 12;
}).map((one) => one.id)"""
"""The level arrows of the map of which nothing is in sight beside their labels."""
SELF = """() => [...document.querySelectorAll("#map [id^=arrow-]")].filter((one) => one.dataset.source === one.dataset.dest)
    .filter((one) => { const label = one.querySelector(".halo").getBBox(), line = one.querySelector(".line").getBBox();
        return label.y < line.y + line.height && label.y + label.height > line.y + 1; }).map((one) => one.id)"""
"""The arrows from a state to itself whose labels cover them."""


CONTRAST = """(one) => {
    const light = (color) => color.match(/\\d+/g).slice(0, 3).map((part) => part / 255)
        .map((part) => (part > 0.04 ? ((part + 0.055) / 1.055) ** 2.4 : part / 12.92))
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
    const [text, page] = [getComputedStyle(one).color, getComputedStyle(one.closest(".bar")).backgroundColor];
    const [low, high] = [light(text), light(page)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
}"""


def test_a_turn_inside_a_turn_is_linked_and_every_arrow_is_in_sight(browser: Browser, home: Path) -> None:
    workshop = DebugSession.of_workflow(nested.workflow(home))
    page = browser.open(browser.serve(workshop, workshop.start("LAMP CHAIR").id).url, dark=True)
    page.keyboard.press("i")
    link = page.locator(".chip.inner")
    link.wait_for()
    assert link.evaluate(CONTRAST) > 4.5
    page.keyboard.press("c")
    page.locator("#arrow-Order-Closed .label", has_text="×1").wait_for()
    assert page.evaluate(COVERED) == []
    assert page.evaluate(SELF) == []
