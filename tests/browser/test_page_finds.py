"""What the page finds out and changes: links to moves, search, other budgets, conditions on data, requests that are edited,
a process that died, a program that is gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.debug import DebugSession
from fsm_agent.testing import repeat, text
from tests.browser.acting import choose, engine, expect, looks_at, press
from tests.browser.conftest import Browser
from tests.browser.scenes import agent_of, failed_turn, long_turn, paced, provider, workshop_of
from tests.debug.test_debug_data import dead

pytestmark = pytest.mark.slow


def test_a_link_leads_to_a_move_and_is_there_after_a_reload(browser: Browser, home: Path) -> None:
    server = browser.serve(workshop_of(home, repeat(provider)), failed_turn(home))
    page = browser.open(f"{server.url}&at=3")
    looks_at(page, "3 of 8")
    expect(page).to_have_url(re.compile("#at=3$"))
    press(page, "m", shows="4 of 8")
    expect(page).to_have_url(re.compile("#at=4$"))
    page.reload()
    looks_at(page, "4 of 8")
    page.evaluate("() => { location.hash = '#at=2'; }")
    looks_at(page, "2 of 8")
    press(page, "End", shows="8 of 8")
    expect(page).not_to_have_url(re.compile("#"))
    page.goto(f"{server.address}?turn=s-nothing")
    page.get_by_role("heading", name="There is no such turn").wait_for()
    page.locator(".picker summary").click()
    page.locator(".picker li button").first.click()
    looks_at(page, "8 of 8")


def test_a_search_goes_around_and_lists_its_hits(browser: Browser, home: Path) -> None:
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), long_turn(home, 12)).url)
    field, count = page.locator(".search input"), page.locator(".hits-count")
    field.fill("noted 1")
    field.press("Enter")
    page.locator(".hits li").first.wait_for()
    whole = page.locator(".hits li").count()
    for number in (*range(1, whole + 1), 1):
        expect(count).to_have_text(f"{number} of {whole}")
        field.press("Enter")
    field.press("Shift+Enter")
    expect(count).to_have_text(f"1 of {whole}")
    field.press("Shift+Enter")
    expect(count).to_have_text(f"{whole} of {whole}")
    hit = page.locator(".hits li button").nth(1)
    place = hit.locator(".num").inner_text()
    hit.click()
    looks_at(page, f"at {place} of")
    field.fill("nowhere to be found")
    field.press("Enter")
    page.get_by_role("alert").filter(has_text="is in no move").wait_for()
    expect(field).to_have_value("nowhere to be found")


def test_other_budgets_would_have_taken_another_row(browser: Browser, home: Path) -> None:
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), failed_turn(home)).url + "&at=2")
    looks_at(page, "2 of 8")
    ladder = page.locator(".whatif .ladder")
    ladder.get_by_text("a limit of iterations of 0").first.wait_for()
    expect(ladder.locator(".taken")).to_contain_text("iterations: 90 of 90 left")
    page.get_by_text("What if the budgets were others?").click()
    page.get_by_label("limit of iterations").fill("0")
    page.get_by_role("status").filter(has_text="Then summarize would be taken, to BuildMessages").wait_for()
    page.get_by_role("button", name="the budgets as they were").click()
    page.get_by_role("status").filter(has_text="The same row is taken").wait_for()
    page.get_by_role("button", name="fork so that BuildMessages.built/5 is taken").click()
    page.get_by_role("dialog").get_by_label("iterations", exact=True).wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Fork with these changes").click()
    engine(page, "paused.*BuildMessages.*1 move")
    page.keyboard.press("c")
    page.get_by_label("how the turn ended").get_by_text("budget exhausted").wait_for()


def test_a_condition_on_a_tool_is_completed_checked_and_met(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, paced(6, 0.0))
    page = browser.open(browser.serve(workshop, workshop.start("go").id).url)
    choose(page, "Breaks")
    page.get_by_label("kind of breakpoint").select_option("move")
    page.get_by_role("button", name="add the breakpoint").click()
    field = page.get_by_label("condition of any")
    field.press_sequentially("res")
    page.get_by_role("option", name=re.compile("^result")).wait_for()
    field.press("ArrowDown")
    field.press("Enter")
    page.get_by_role("option", name=re.compile("contains")).wait_for()
    field.press_sequentially('contains "waited" and nonsense > 2')
    field.press("Enter")
    page.get_by_role("alert").filter(has_text="unknown name 'nonsense'").wait_for()
    expect(field).to_have_value('result contains "waited" and nonsense > 2')
    field.fill('tool == "wait_a_little" and result contains "waited" and iterations >= 2')
    field.press("Enter")
    page.get_by_role("alert").wait_for(state="detached")
    page.locator(".tabs").click(position={"x": 2, "y": 2})
    press(page, "c", runs="paused.*BuildMessages.*7 moves")
    page.locator(".reason", has_text=re.compile("breakpoint: .+ at move any")).wait_for()
    page.locator(".spent", has_text=re.compile("2 requests · [0-9]+ tokens")).wait_for()


def test_a_held_request_is_edited_and_an_answer_is_a_form(browser: Browser, home: Path) -> None:
    bodies: list[Any] = []

    def model(body: dict[str, Any]) -> Any:
        bodies.append(body)
        return text("**Loud** and\nclear\n\n- <img src=x onerror=\"document.title='caught'\">")

    workshop = workshop_of(home, repeat(model))
    page = browser.open(browser.serve(workshop, workshop.start("What is happening?").id).url)
    choose(page, "Breaks")
    page.get_by_label("before each request to the model").check()
    page.keyboard.press("c")
    card = page.get_by_role("alertdialog", name="The model is about to be asked")
    card.get_by_text("the exact body").click()
    expect(card.get_by_label("body of the request")).to_contain_text("What is happening?")
    card.get_by_role("button", name="answer by hand").click()
    card.get_by_label("add a call of a tool").select_option("note")
    card.get_by_label("number", exact=True).fill("7")
    card.get_by_role("button", name="give this answer").click()
    card.get_by_role("button", name="edit the request").click()
    body = card.get_by_label("body to send")
    changed = body.input_value().replace("What is happening?", "What was changed?")
    body.fill("{nonsense")
    card.get_by_role("button", name="send what is written here").click()
    card.get_by_role("alert").filter(has_text="is not JSON").wait_for()
    expect(body).to_have_value("{nonsense")
    body.fill(changed)
    card.get_by_role("button", name="send what is written here").click()
    engine(page, "ended")
    assert "What was changed?" in str(bodies[0])
    assert "noted 7" in str(bodies[0])
    ending = page.get_by_label("how the turn ended")
    ending.locator("strong", has_text="Loud").wait_for()
    expect(ending.locator("img, script")).to_have_count(0)
    expect(ending).to_contain_text("<img src=x")
    ending.get_by_role("button", name="show it as it was written").click()
    expect(ending.locator(".final")).to_contain_text("**Loud**")
    assert "**Loud** and\nclear" in ending.locator(".final").inner_text()
    expect(page).to_have_title("fsm_agent debugger")


def test_a_process_that_died_has_a_red_card(browser: Browser, home: Path) -> None:
    store, turn = dead(home, "unsafe")
    workshop = DebugSession(store, lambda hint: agent_of(home, [text("well")]))
    page = browser.open(browser.serve(workshop, turn).url)
    card = page.get_by_label("the process died")
    card.get_by_text("1 effect is in doubt").wait_for()
    for words in ("a call of shoot", "the moon", "Resume does not run it again"):
        expect(card).to_contain_text(words)
    card.get_by_role("button", name="resume the turn").click()
    engine(page, "paused.*ExecuteTools")
    card.wait_for(state="detached")
    press(page, "c", runs="ended")


def test_without_the_program_nothing_can_be_pressed(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, repeat(provider))
    server = browser.serve(workshop, workshop.start("Why?").id)
    page = browser.open(server.url)
    expect(page.get_by_role("button", name="step", exact=True)).not_to_have_attribute("aria-disabled", "true")
    page.get_by_role("button", name="forward").click(force=True)
    page.get_by_role("alert").filter(has_text="this is the newest move").wait_for()
    server.stop()
    page.locator(".chip.bad", has_text="the debugger is gone").wait_for()
    names = ("step", "step into", "step over", "continue", "interrupt", "fork here")
    for name in names:
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_have_attribute("aria-disabled", "true")
        expect(button).to_have_attribute("title", re.compile("the debugger is gone"))
    expect(page.locator(".search input")).to_be_disabled()
    page.keyboard.press("n")
    page.locator(".toast", has_text="the debugger is gone").wait_for()
    browser.errors.clear()  # the browser says on its console that nothing answers
