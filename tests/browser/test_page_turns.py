"""What the page shows when another turn is opened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.acting import engine, looks_at, press
from tests.browser.conftest import Browser
from tests.browser.test_own_table import own

pytestmark = pytest.mark.slow


def test_a_late_answer_about_the_forked_turn_does_not_reach_the_page(browser: Browser, home: Path) -> None:
    workshop = own(home)
    first = workshop.start("Say what a cat is.").id
    page = browser.open(browser.serve(workshop, first).url)
    late: list[Any] = []
    about = re.compile(rf"/api/turns/{first}$")
    page.route(about, lambda route: late.append(route))
    press(page, "c", runs="ended.*4 moves")
    press(page, "b", "b", shows="2 of 4")
    page.get_by_role("tab", name="State").click()
    page.get_by_role("button", name="fork with other counters").click()
    page.get_by_role("dialog").get_by_label("rounds").fill("3")
    page.get_by_role("dialog").get_by_role("button", name="Fork with these changes").click()
    engine(page, "paused.*Revise.*2 moves")
    assert late, "the end of the first turn is asked for"
    with page.expect_response(about):
        for one in late:
            one.continue_()
    press(page, "n", runs="paused.*3 moves")
    looks_at(page, "3 of 3")
    assert page.get_by_label("how the turn ended").count() == 0
    assert page.locator(".picker .outcome").first.inner_text() != "completed"
