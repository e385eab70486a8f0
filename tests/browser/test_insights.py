"""What recent turns took, as plots: each with its figures in a table."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fsm_agent import Agent
from fsm_agent.debug import DebugSession
from fsm_agent.sessions.store import Store
from fsm_agent.testing import ScriptedModel, call, repeat, status, text, tools
from tests.browser.acting import expect, more
from tests.browser.axe import violations
from tests.browser.conftest import Browser
from tests.helpers.recorded_turns import measure

pytestmark = pytest.mark.slow

TURNS = 40


def record(home: Path, store: Store) -> None:
    for number in range(TURNS):
        odd = number == TURNS - 1
        replies = [status(401)] if odd else [tools(call("measure", {"place": "mill"})), text("4 feet")]
        agent = Agent(ScriptedModel(replies), tools=[measure], toolsets=[], home=home, store=store)
        agent.run_conversation(f"{number:02} how high is the river?")
        agent.close()


def turns(home: Path) -> DebugSession:
    """Forty turns over four days, of which one met an error that no other did."""
    store = Store(home)
    with ThreadPoolExecutor(1) as apart:  # the browser has a loop in this thread
        apart.submit(record, home, store).result()
    day = "86400 * (CAST(SUBSTR(asked, 1, 2) AS INTEGER) % 4)"
    for change in (
        f"UPDATE usage SET at = at - (SELECT {day} FROM turns t WHERE t.id = usage.turn)",
        f"UPDATE turns SET began = began - {day}, ended = ended - {day}",
    ):
        store.database.write(lambda c, one=change: c.execute(one) and None)
    return DebugSession(
        store, lambda hint: Agent(ScriptedModel(repeat(lambda body: text("no"))), home=home, store=store)
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_trends_and_improbable_turns_are_plots_with_tables(width: int, browser: Browser, home: Path) -> None:
    workshop = turns(home)
    page = browser.open(browser.serve(workshop).url, width)
    more(page, "What recent turns took")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("40 turns on 4 days").wait_for()
    for title in ("requests by day", "money by day", "seconds by day"):
        picture = dialog.get_by_role("img", name=title)
        expect(picture.locator("circle")).to_have_count(0 if title.startswith("money") else 4)
        rows = dialog.get_by_role("region", name=f"figures of {title}").locator("tbody tr")
        expect(rows).to_have_count(4)
        expect(rows.last.locator("th")).to_have_text(datetime.date.today().isoformat())
    dialog.get_by_role("img", name="the row that ended the visit").locator("rect").first.wait_for()
    odd = dialog.get_by_role("region", name="improbable turns").locator("tbody tr").first
    expect(odd).to_contain_text("CallLLM.error")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    with page.expect_response("**/api/insights?days=7"):
        dialog.get_by_label("the last").select_option("7")
    dialog.get_by_text("40 turns on 4 days").wait_for()
    odd.get_by_role("button").click()
    page.get_by_label("how the turn ended").get_by_text("Failed").wait_for()
