"""The page for everybody: axe-core finds nothing in any view, a phone is wide enough, colors follow the system, no line
of the map crosses a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsm_agent.sessions.store import store_for
from fsm_agent.testing import repeat
from tests.browser.acting import choose, engine, expect, looks_at, press
from tests.browser.axe import violations
from tests.browser.conftest import Browser
from tests.browser.scenes import cleaner, failed_turn, lengthened, long_turn, provider, workshop_of

pytestmark = pytest.mark.slow
WIDTHS = [(1280, 800, False), (1280, 800, True), (390, 844, False), (390, 844, True)]


class Views:
    """Looks at one view after the other."""

    def __init__(self, page: Any, width: int) -> None:
        self._page, self._width = page, width

    def look(self, view: str) -> None:
        assert violations(self._page) == [], view
        assert self._page.evaluate("document.documentElement.scrollWidth") <= self._width, view


@pytest.mark.parametrize(("width", "height", "dark"), WIDTHS)
def test_axe_finds_nothing_in_any_view(
    browser: Browser, home: Path, width: int, height: int, dark: bool
) -> None:
    workshop = workshop_of(home, repeat(cleaner))
    asking = workshop.start("Remove the duplicate")
    server = browser.serve(workshop, failed_turn(home))
    page = browser.open(server.url, width, height, dark)
    views = Views(page, width)
    looks_at(page, "8 of 8")
    views.look("as it opens")
    press(page, "b", "b", shows="6 of 8")
    page.locator(".whatif .ladder").wait_for()
    views.look("a move")
    for name in ("State", "Messages", "Wire", "Breaks"):
        choose(page, name)
        views.look(name)
    page.get_by_role("button", name="add the breakpoint").click()
    condition = page.get_by_label("condition of Prepare")
    condition.fill("to")
    page.locator(".offers:not([hidden])").wait_for()
    views.look("completion")
    condition.fill("tool == 3")
    page.get_by_role("alert").filter(has_text="compares a text with a number").wait_for()
    views.look("a condition that is refused")
    page.get_by_role("button", name="show the whole table").click()
    page.get_by_role("button", name="time", exact=True).click()
    page.locator(".waits-legend").wait_for()
    views.look("table and time")
    page.locator(".search input").fill("import")
    page.locator(".search input").press("Enter")
    page.locator(".hits li").first.wait_for()
    views.look("hits")
    page.locator(".search input").press("Escape")
    page.locator(".picker summary").click()
    page.locator(".picker li").first.wait_for()
    views.look("turns")
    press(page, "Escape", "f")
    for kind in ("counters", "messages", "user_message"):
        page.get_by_label("add a change").select_option(kind)
    page.get_by_role("dialog").get_by_label("iterations", exact=True).wait_for()
    views.look("fork")
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")  # a key is the dialog's as long as it is there
    views.look("the page again")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    views.look("help")
    page.keyboard.press("Escape")
    page.goto(f"{server.address}?turn={asking.id}#token={server.token}")
    engine(page, "paused")
    page.keyboard.press("c")
    page.locator(".held").wait_for()
    views.look("a question")


TOLD = """() => {
    window.told = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { told += 1; });
}"""
"""Count the changes of the system's colors that the page has noticed: its listener runs before this one."""


def test_colors_follow_the_system_until_one_chooses(browser: Browser, home: Path) -> None:
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), failed_turn(home)).url)
    body, light = page.locator("body"), "rgb(243, 245, 248)"
    expect(body).to_have_css("background-color", light)
    page.emulate_media(color_scheme="dark")
    expect(body).not_to_have_css("background-color", light)
    page.get_by_role("button", name="light colors").click()
    expect(body).to_have_css("background-color", light)
    page.evaluate(TOLD)
    for number, system in enumerate(("light", "dark"), 1):
        page.emulate_media(color_scheme=system)
        page.wait_for_function("(number) => told === number", arg=number)
    expect(body).to_have_css("background-color", light)  # as was chosen here


CROSSED = """() => {
    const found = [], arrows = [...document.querySelectorAll("#map .arrow")];
    const meet = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
    for (const one of arrows) {
        const box = one.querySelector(".halo").getBBox();
        for (const other of arrows.filter((arrow) => arrow !== one)) {
            const line = other.querySelector(".line");
            for (let at = 0; at <= line.getTotalLength(); at += 2) {
                const { x, y } = line.getPointAtLength(at);
                if (meet(box, { x, y, width: 0, height: 0 })) { found.push(`${other.id} crosses the label of ${one.id}`); break; }
            }
            if (meet(box, other.querySelector(".halo").getBBox())) found.push(`labels of ${one.id} and ${other.id}`);
        }
        for (const state of document.querySelectorAll("#map [id^=state-] .box")) if (meet(box, state.getBBox())) found.push(`${one.id} on a state`);
    }
    return found;
}"""


def test_no_line_of_the_map_crosses_a_label(browser: Browser, home: Path) -> None:
    server = browser.serve(workshop_of(home, repeat(provider)), failed_turn(home))
    page = browser.open(server.url)
    page.locator("#arrow-BuildMessages-CallLLM .label", has_text="send ×2").wait_for()
    assert page.evaluate(CROSSED) == []
    page.goto(f"{server.address}?turn={long_turn(home, 60)}#token={server.token}")
    page.locator("#arrow-BuildMessages-CallLLM .label", has_text="send ×61 +1").wait_for()
    page.locator("#arrow-CallLLM-Finalize .label", has_text="text response ×1").wait_for()
    assert page.evaluate(CROSSED) == []


def test_twenty_thousand_moves_are_few_elements(browser: Browser, home: Path) -> None:
    """On either axis, and wherever one looks: what is in the document does not grow with the turn."""
    small, turn = long_turn(home, 10), long_turn(home, 60)
    lengthened(store_for(home, "normal"), turn, 20_000)
    server = browser.serve(workshop_of(home, repeat(provider)), small)
    page = browser.open(server.url)
    looks_at(page, "of")
    count = "document.querySelectorAll('*').length"
    few = page.evaluate(count)
    page.goto(f"{server.address}?turn={turn}#token={server.token}")
    looks_at(page, "20,000 of 20,000")
    for axis in ("moves", "time"):
        page.get_by_role("button", name=axis, exact=True).click()
        for key, place in (("Home", "0"), ("m", "1"), ("End", "20,000")):
            press(page, key, shows=f"at {place} of")
            page.locator(".move-row.looked").wait_for()
        assert page.evaluate(count) < few + 200
    page.locator(".waits-legend").wait_for()
    assert page.locator(".move-row").count() < 60
