"""What the page asks before a call may run: shown exactly, and answered only by who has read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from fsm_agent.approvals.question import original
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.debug.core.pending_request import call_form
from fsm_agent.errors import TurnSuspended
from fsm_agent.fsm.codec import dumps
from fsm_agent.support.redaction import mask_json
from fsm_agent.testing import call, repeat, text, tools
from tests.browser.acting import choose, expect, press
from tests.browser.conftest import Browser
from tests.browser.scenes import agent_of, apart, cleaner, failed_turn, workshop_of
from tests.helpers.questions import ARGUMENTS, rebuilt, with_lists_as_objects

pytestmark = pytest.mark.slow
CARD = ".held"
DRAWN = """async (held) => {
  const { Waiting } = await import("/static/held.js");
  const { html, render } = await import("/static/ui.js");
  const box = document.getElementById("drawn") || document.body.appendChild(Object.assign(document.createElement("div"), { id: "drawn" }));
  render(null, box);
  render(html`<${Waiting} held=${[held]} onAnswer=${() => 0} onLet=${() => 0} />`, box);
  const said = (one, name) => one.querySelector(name)?.textContent;
  return [...box.querySelectorAll(".call-part")].map((one) => [said(one, ".call-place"), said(one, ".call-text"), said(one, ".call-json")]);
}"""
"""Draws a question with the page's own script, and reads the text of what was drawn."""


def test_the_text_of_the_page_reads_back_to_what_runs(browser: Browser, home: Path) -> None:
    page = browser.open(browser.serve(workshop_of(home, repeat(text("ok"))), failed_turn(home)).url)

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(ARGUMENTS)
    def reads_back(arguments: dict[str, Any]) -> None:
        held = {
            "id": 7,
            "kind": "approval",
            "allowable": True,
            **call_form(AskApproval("c1", "terminal", arguments)),
        }
        parts = page.evaluate(DRAWN, json.loads(dumps(mask_json(held))))
        shown = (
            (place, original(words if words is not None else value[2:]), words is not None)
            for place, words, value in parts
        )
        assert rebuilt(shown) == with_lists_as_objects(arguments)

    reads_back()


HIDES = (
    "curl -H 'Cookie: a=b; " + "x" * 40 + "; touch OWNED' # \u202e\x1b]0;\n" + "true\n" * 60 + "touch LAST"
)


def asked(browser: Browser, home: Path, *keys: str, **more: Any) -> Any:
    """The page with a call of ``delete_row`` for each of these keys, the first of which is asked about."""
    script = [tools(*(call("delete_row", {"key": key}) for key in keys)), text("done")]
    workshop = workshop_of(home, script, **more)
    page = browser.open(browser.serve(workshop, workshop.start("Remove it").id).url)
    page.keyboard.press("c")
    page.locator(CARD).wait_for()
    return page


def test_a_call_is_shown_whole_and_unmasked(browser: Browser, home: Path) -> None:
    page = asked(browser, home, HIDES)
    card = page.locator(CARD)
    assert original(card.locator(".call-text").text_content()) == HIDES
    expect(card).to_contain_text("all of it is here, scroll to see it")
    box = card.locator(".call-text")
    assert box.evaluate("(one) => one.scrollHeight > one.clientHeight")
    style = box.evaluate(
        "(one) => { const { whiteSpace, unicodeBidi, direction } = getComputedStyle(one); return [whiteSpace, unicodeBidi, direction]; }"
    )
    assert style == ["break-spaces", "bidi-override", "ltr"]
    assert original(card.locator(".call-remembered").text_content()).startswith("delete_row(")


EARLY = "document.querySelector('.held .buttons button').matches('[aria-disabled=true]')"


def presses(page: Any, label: str) -> Any:
    """The button, pressed the moment that it is there, as a click that was on its way would."""
    return page.evaluate(
        """(label) => new Promise((done) => {
          const look = () => {
            const button = document.querySelector(`.held button[aria-label="${label}"]`);
            if (!button) return requestAnimationFrame(look);
            button.click();
            done(button.getAttribute("aria-disabled") === "true");
          };
          look();
        })""",
        label,
    )


def test_a_click_that_was_meant_for_the_question_before_answers_nothing(browser: Browser, home: Path) -> None:
    page = asked(browser, home, "first", "second")
    allow = page.locator(CARD).get_by_role("button", name="allow once")
    place = allow.bounding_box()
    allow.click()  # waits until it may be pressed
    page.mouse.click(place["x"] + 5, place["y"] + 5, click_count=2, delay=10)
    page.locator(".call-text", has_text="second").wait_for()
    assert presses(page, "allow once") is True
    page.get_by_text("Not taken: this has only just appeared here").wait_for()
    press(page, "Enter", "Space")
    page.wait_for_function(f"() => !{EARLY}")
    expect(page.locator(".call-text")).to_contain_text("second")
    page.locator(CARD).get_by_role("button", name="deny").click()
    page.locator(".chip.engine.ended").wait_for()
    choose(page, "Messages")
    expect(page.locator(".message.tool").last).to_contain_text("denied")


def test_what_moves_or_is_covered_cannot_be_pressed_at_once(browser: Browser, home: Path) -> None:
    page = asked(browser, home, "first")
    allow = page.locator(CARD).get_by_role("button", name="allow once")
    page.wait_for_function(f"() => !{EARLY}")
    page.evaluate("() => { document.querySelector('.notices').style.paddingTop = '40px'; }")
    page.wait_for_function(f"() => {EARLY}")
    page.wait_for_function(f"() => !{EARLY}")
    page.evaluate(
        """() => document.body.appendChild(Object.assign(document.createElement("div"),
          { id: "over", style: "position:fixed;inset:0;z-index:99" }))"""
    )
    page.wait_for_function(f"() => {EARLY}")
    page.evaluate("() => document.getElementById('over').remove()")
    assert presses(page, "allow once") is True
    allow.click()
    page.locator(".chip.engine.ended").wait_for()


def test_a_yes_for_the_session_is_kept_as_the_page_says(browser: Browser, home: Path) -> None:
    page = asked(browser, home, "first", "first")
    assert page.locator(".call-remembered").text_content() == 'delete_row({"key":"first"})'
    page.locator(CARD).get_by_role("button", name="allow for this session").click()
    page.locator(".chip.engine.ended").wait_for()  # the same call was not asked about again


def test_what_a_suspended_turn_waits_for_is_answered_here(browser: Browser, home: Path) -> None:
    rules = {"approval": {"unanswered": "suspend"}}
    workshop = workshop_of(home, cleaner, settings=rules)
    with pytest.raises(TurnSuspended) as caught:
        apart(lambda: agent_of(home, cleaner, settings=rules).chat(HIDES))
    [item] = caught.value.pending
    page = browser.open(browser.serve(workshop, item.turn).url)
    page.get_by_text("More", exact=True).click()
    page.get_by_role("button", name="What turns wait for").click()
    card = page.get_by_role("dialog").locator(CARD)
    assert card.locator(".call-text").text_content() == item.asked
    card.get_by_role("button", name=f"once {item.id}").click()  # waits until it may be pressed
    page.get_by_text(f"{item.id} is answered: yes (once)").wait_for()
    card.wait_for(state="detached")
    page.get_by_role("button", name="close", exact=True).click()
    page.get_by_role("button", name="resume the turn").click()
    page.locator(".chip.engine.paused").wait_for()
    page.keyboard.press("c")
    page.locator(".chip.engine.ended").wait_for()
    expect(page.locator(".ending")).to_contain_text("deleted invoice 20481")
