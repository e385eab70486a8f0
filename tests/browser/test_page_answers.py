"""The page while answers are on their way: it shows one position or the other, one turn or the other, and does what is
ordered in the order in which it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.testing import repeat
from tests.browser.acting import choose, engine, expect, fill, fork_with, looks_at, press
from tests.browser.conftest import Browser
from tests.browser.scenes import failed_turn, paced, provider, workshop_of
from tests.browser.test_own_table import own

pytestmark = pytest.mark.slow


class Delayed:
    """Requests that get no answer before ``release``."""

    def __init__(self, page: Any, path: str) -> None:
        self._held: list[Any] | None = []
        page.route(re.compile(path), self._meet)

    def _meet(self, route: Any) -> None:
        if self._held is None:
            route.continue_()
        else:
            self._held.append(route)

    def release(self) -> None:
        held, self._held = self._held, None
        for route in held or ():
            route.continue_()


def test_a_move_is_drawn_with_its_choices(browser: Browser, home: Path) -> None:
    """What comes later would push down the buttons below it."""
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), failed_turn(home)).url)
    Delayed(page, "/choices")
    for place in range(7, 0, -1):
        press(page, "b", shows=f"at {place} of 8")
        expect(page.locator(".ladder .taken")).to_have_count(1)


@pytest.mark.parametrize(("tab", "part"), [("Messages", "/messages"), ("Wire", "/wire")])
def test_a_view_has_no_parts_of_two_positions(browser: Browser, home: Path, tab: str, part: str) -> None:
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), failed_turn(home)).url)
    press(page, "b", "b", shows="6 of 8")
    choose(page, tab)
    before = page.locator("#panel").inner_text()
    delayed = Delayed(page, part)
    with page.expect_request(re.compile(part)):
        page.evaluate("() => { location.hash = '#at=3'; }")
    looks_at(page, "3 of 8")
    assert page.locator("#panel").inner_text() == before
    delayed.release()
    expect(page.locator("#panel")).not_to_have_text(before, use_inner_text=True)


def test_nothing_of_the_turn_before_is_told_of_another(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, repeat(provider))
    failed = failed_turn(home)
    other = workshop.start("Why?").id
    page = browser.open(browser.serve(workshop, failed).url)
    page.locator("#state-Compress").click()
    expect(page.locator("#state-Compress")).to_have_attribute("aria-pressed", "true")
    delayed = Delayed(page, f"/api/turns/{other}")
    page.locator(".picker summary").click()
    page.locator(".picker li", has_text="Why?").locator("button").click()
    expect(page).to_have_url(re.compile(other))
    expect(page.locator(".chip.engine")).to_contain_text("engine …")
    expect(page.locator("#state-Compress")).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#state-Finalize .intro")).to_have_text("not visited")
    delayed.release()
    engine(page, "paused in Prepare")


def test_orders_are_carried_out_in_the_order_in_which_they_were_given(browser: Browser, home: Path) -> None:
    """A second change of a breakpoint leaves the first as it is, and the turn continues only after both."""
    workshop = workshop_of(home, paced(6, 0.0))
    page = browser.open(browser.serve(workshop, workshop.start("go").id).url)
    choose(page, "Breaks")
    page.get_by_label("what to stop at").select_option("ExecuteTools")
    page.get_by_role("button", name="add the breakpoint").click()
    page.get_by_label("condition of ExecuteTools").wait_for()
    delayed = Delayed(page, "/breakpoints$")
    fill(page, "condition of ExecuteTools", "iterations >= 2")
    fill(page, "hits of ExecuteTools", "2")
    page.locator(".tabs").click(position={"x": 2, "y": 2})
    page.keyboard.press("c")
    delayed.release()
    engine(page, "paused.*ExecuteTools.*9 moves")
    expect(page.get_by_label("condition of ExecuteTools")).to_have_value("iterations >= 2")
    looks_at(page, "9 of 9")


def test_two_kinds_of_requests_that_are_ticked_at_once_are_both_held(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, paced(6, 0.0))
    page = browser.open(browser.serve(workshop, workshop.start("go").id).url)
    choose(page, "Breaks")
    delayed = Delayed(page, "/orders/hold$")
    boxes = [page.get_by_label(f"before each {what}") for what in ("request to the model", "call of a tool")]
    for box in boxes:
        box.click()
    with page.expect_response(lambda answer: '"tool"' in (answer.request.post_data or "")):
        delayed.release()
    page.reload()
    choose(page, "Breaks")
    for box in boxes:
        expect(box).to_be_checked()


def test_a_late_answer_about_the_forked_turn_does_not_reach_the_page(browser: Browser, home: Path) -> None:
    workshop = own(home)
    first = workshop.start("Say what a cat is.").id
    page = browser.open(browser.serve(workshop, first).url)
    about = re.compile(rf"/api/turns/{first}$")
    late = Delayed(page, about.pattern)
    press(page, "c", runs="ended.*4 moves")
    press(page, "b", "b", shows="2 of 4")
    fork_with(page, "rounds", "3")
    engine(page, "paused.*Revise.*2 moves")
    with page.expect_response(about):
        late.release()
    press(page, "n", runs="paused.*3 moves")
    looks_at(page, "3 of 3")
    assert page.get_by_label("how the turn ended").count() == 0
    assert page.locator(".picker .outcome").first.inner_text() != "completed"
