"""The page as a person uses it, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsm_agent import Agent
from fsm_agent.debug import DebugSession
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.browser import scenes
from tests.browser.acting import choose, engine, expect, fill, looks_at, more, press
from tests.browser.conftest import Browser
from tests.browser.scenes import cleaner, failed_turn, lengthened, long_turn, paced, provider, workshop_of
from tests.debug.test_debug_remote import Elsewhere
from tests.helpers.processes import ran
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow
LONG = {"max_iterations": 100, "guardrail": {"hard_stop": False}}


def test_a_failed_turn_is_understood_and_cured_by_a_fork(
    browser: Browser, home: Path, tmp_path: Path
) -> None:
    turn = failed_turn(home)
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), turn).url)

    # it opens where the turn failed, and says why
    ending = page.get_by_label("how the turn ended")
    expect(ending).to_contain_text("Failed: overflow uncompressible")
    expect(ending).to_contain_text("too long for this model")
    looks_at(page, "8 of 8")
    assert "token=" not in page.url

    # looking back: nothing runs, the engine stays where it is
    press(page, "b", "b", shows="6 of 8.*ClassifyError")
    engine(page, "ended")
    page.get_by_label("inspector").get_by_text("http 400").wait_for()
    page.locator(".effect.bad .said", has_text="maximum context length").wait_for()

    # a breakpoint on the arrow to the error
    arrow = page.locator("#arrow-CallLLM-ClassifyError")
    arrow.locator(".label").click()
    expect(arrow).to_have_attribute("aria-pressed", "true")

    # the result of the tool was too long: give a shorter one, and continue from before the call
    press(page, "b", "b", shows="4 of 8")
    page.get_by_role("button", name="fork with another result of read_log").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Result of a tool", exact=True).fill(scenes.TAIL)
    dialog.get_by_role("button", name="Fork with these changes").click()
    engine(page, "paused.*ExecuteTools.*3 moves")
    expect(arrow).to_have_attribute("aria-pressed", "true")

    # step, step into, on to the end: this time it answers
    press(page, "n", runs="paused.*BuildMessages.*4 moves")
    page.keyboard.press("i")
    page.locator(".reason", has_text="CheckSignals done").wait_for()
    press(page, "o", runs="paused.*CallLLM.*5 moves")
    press(page, "c", runs="ended")
    page.get_by_label("how the turn ended").get_by_text(scenes.ANSWER).wait_for()

    # both runs side by side
    more(page, "Compare with …")
    page.get_by_role("dialog").get_by_role("button", name=re.compile("failed")).click()
    page.get_by_text(
        "3 moves in common before the fork · first different answer: move 4 · first different move: 6"
    ).wait_for()
    page.get_by_label("two runs compared").get_by_text("overflow uncompressible").wait_for()
    page.get_by_label("left reply").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.locator(".compare-row.looked", has_text="5 BuildMessages").wait_for()
    page.keyboard.press("Escape")
    page.get_by_label("two runs compared").wait_for(state="detached")

    # a test of it, which is green, and the run as a file
    more(page, "Make a pytest")
    made = page.get_by_label("A test of this turn").last
    made.get_by_text("def test_turn").wait_for()
    (tmp_path / "test_made.py").write_text(page.locator("pre.tall").inner_text())
    played = ran("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_made.py"))
    assert played.returncode == 0, played.stdout
    page.get_by_role("button", name="close", exact=True).click()
    more(page, "Export the run")
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile("^save as")).click()
    exported = tmp_path / "run.jsonl"
    download.value.save_as(exported)
    page.get_by_role("button", name="close", exact=True).click()
    more(page, "Import a run")
    page.get_by_label("exported file").set_input_files(exported)
    page.get_by_role("dialog").get_by_role("button", name="Import").click()
    page.get_by_label("how the turn ended").get_by_text(scenes.ANSWER).wait_for()


def test_conditions_hits_and_notes(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, [*paced(6, 0.0)])
    page = browser.open(browser.serve(workshop, workshop.start("go").id).url)
    choose(page, "Breaks")
    page.get_by_label("what to stop at").select_option("ExecuteTools")
    page.get_by_role("button", name="add the breakpoint").click()
    fill(page, "condition of ExecuteTools", "iterations >= 2")
    fill(page, "hits of ExecuteTools", "2")
    page.get_by_label("kind of breakpoint").select_option("event")
    page.get_by_label("what to stop at").select_option("tools")
    page.get_by_role("button", name="add the breakpoint").click()
    fill(page, "logpoint of tools", "round {iterations} at {seq}")
    page.locator(".tabs").click(position={"x": 2, "y": 2})
    press(page, "c", runs="paused.*ExecuteTools.*9 moves")
    logs = ["3 round 1 at 3", "6 round 2 at 6", "9 round 3 at 9"]
    expect(page.locator(".logs li")).to_have_text(logs)
    fill(page, "condition of ExecuteTools", "nonsense >= 2")
    page.get_by_role("alert").filter(has_text="unknown name").wait_for()


def test_what_is_typed_stays_while_the_turn_runs(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, paced(60, 0.03), settings=LONG)
    turn = workshop.start("go").id
    page = browser.open(browser.serve(workshop, turn).url)
    choose(page, "Breaks")
    page.get_by_label("what to stop at").select_option("EmptyRecovery")
    page.get_by_role("button", name="add the breakpoint").click()
    page.locator(".tabs").click(position={"x": 2, "y": 2})
    page.keyboard.press("c")
    field = page.get_by_label("condition of EmptyRecovery")
    field.press_sequentially("iterations >= 2", delay=40)
    expect(field).to_have_value("iterations >= 2")
    engine(page, "running")
    field.press("Tab")
    until(lambda: [one.condition for one in workshop.open(turn).breakpoints] == ["iterations >= 2"])
    page.keyboard.press("Escape")
    page.get_by_role("button", name="interrupt").click()
    engine(page, "ended")


def test_script_in_a_tool_result_is_text(browser: Browser, home: Path) -> None:
    evil = "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script>"
    workshop = workshop_of(home, [text(evil)])
    workshop.start(evil).order("continue")
    page = browser.open(browser.serve(workshop, workshop.newest()).url)
    engine(page, "ended")
    for name in ("Move", "State", "Wire", "Messages"):
        choose(page, name)
    page.locator(".message.user .content").get_by_text("<img src=x").wait_for()
    expect(page.locator(".message img, .message script")).to_have_count(0)
    expect(page).to_have_title("fsm_agent debugger")


NAMELESS = """() => {
    const named = (one) => one.getAttribute('aria-label') || one.getAttribute('title') || one.textContent.trim()
        || (one.labels && one.labels.length && one.labels[0].textContent.trim()) || one.getAttribute('aria-labelledby');
    const kinds = 'button, input, select, textarea, summary, [role=button], [role=slider], [tabindex="0"]';
    const controls = document.querySelectorAll(kinds);
    return [...controls].filter((one) => !named(one)).map((one) => one.outerHTML.slice(0, 120));
}"""
OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll('.bar button, .bar summary, .bar input, .bar .chip')]
        .filter((one) => one.checkVisibility() && !one.closest('.drop')).map((one) => [one, one.getBoundingClientRect()]);
    const found = [];
    boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
        if (!one.contains(other) && !other.contains(one) && a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 2
            && b.top < a.bottom - 2) found.push(`${one.outerHTML.slice(0, 80)} and ${other.outerHTML.slice(0, 80)}`);
    }));
    return found;
}"""


SIZES = [
    (1280, 800, 16),
    (1024, 768, 16),
    (768, 1024, 16),
    (1920, 1080, 16),
    (1280, 800, 24),
    (1024, 768, 22),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True])
def test_every_control_has_a_name_and_a_place(
    browser: Browser, home: Path, size: tuple[int, int, int], dark: bool
) -> None:
    width, height, letters = size
    server = browser.serve(workshop_of(home, repeat(provider)), failed_turn(home))
    page = browser.open(server.url, width, height, dark, text=letters)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark" if dark else "light")
    for name in ("Move", "State", "Messages", "Wire", "Breaks"):
        choose(page, name)
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").get_by_text("step: to the next move").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    page.keyboard.press("f")
    page.get_by_role("dialog").get_by_label("add a change").wait_for()
    assert page.evaluate(NAMELESS) == []


def test_search_the_map_by_keyboard_and_run_to_here(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, repeat(provider))
    page = browser.open(browser.serve(workshop, workshop.start("Why?").id).url)
    page.locator("#state-ExecuteTools").click(modifiers=["Shift"])
    engine(page, "paused.*ExecuteTools.*3 moves")
    page.locator("#state-CallLLM").focus()
    page.keyboard.press("Enter")
    page.locator("#state-CallLLM[aria-pressed=true]").wait_for()
    press(page, "c", runs="paused.*CallLLM.*5 moves")
    page.locator(".reason", has_text="breakpoint: state CallLLM").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("duplicate key")
    press(page, "Enter", shows="4 of 5")
    press(page, "Escape", "Home", shows="0 of 5")
    press(page, "]", shows="2 of 5")
    page.get_by_role("button", name="show the whole table").click()
    page.locator(".table-view [data-event='built'].taken").wait_for()
    page.get_by_role("button", name="dark colors").click()
    expect(page.locator("body")).to_have_css("background-color", "rgb(11, 15, 21)")


def test_a_turn_that_was_left_is_resumed(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, repeat(cleaner))
    debugger = workshop.start("Remove the duplicate")
    page = browser.open(browser.serve(workshop, debugger.id).url)
    press(page, "o", runs="paused.*CallLLM")
    debugger.close()
    engine(page, "stopped")
    page.get_by_role("button", name="resume the turn").click()
    engine(page, "paused.*CallLLM.*2 moves")
    press(page, "x", runs="ended")
    page.get_by_label("how the turn ended").get_by_text("Interrupted").wait_for()


# Those who use no mouse, hear the page, or want nothing to move

SPEAKS = """() => {
    window.spoken = [];
    const region = document.querySelector("p.sr[role=status]");
    const watch = new MutationObserver(() => window.spoken.push(region.textContent));
    watch.observe(region, { childList: true, characterData: true, subtree: true });
}"""


def test_a_screen_reader_announces_the_position_and_not_every_move(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, paced(12, 0.05), settings=LONG)
    page = browser.open(browser.serve(workshop, workshop.start("go").id).url)
    page.evaluate(SPEAKS)
    page.keyboard.press("n")
    page.wait_for_function(
        "() => window.spoken.at(-1)?.startsWith('engine paused in BuildMessages after 1 move')"
    )
    press(page, "c", runs="ended")
    page.wait_for_function("() => window.spoken.at(-1)?.startsWith('engine ended after')")
    page.keyboard.press("b")
    page.wait_for_function("() => window.spoken.at(-1)?.includes('You look at')")
    assert len(page.evaluate("window.spoken")) < 10, "38 moves were made"
    expect(page.locator("h1")).to_have_text("fsm_agent debugger")


def test_the_keyboard_reaches_everything_in_few_steps(browser: Browser, home: Path) -> None:
    """The map is one stop; the arrow keys go through its states and arrows. What drops down closes with
    Escape."""
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), failed_turn(home)).url)
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        active = "document.activeElement"
        reached.append(page.evaluate(f"{active}.getAttribute('aria-label') || {active}.textContent"))
        if reached[-1] == "list of moves":
            break
    order = "back|fork here|more|search moves, requests and replies|help|breakpoint on state Prepare"
    places = [reached.index(name) for name in f"{order}|position looked at".split("|")]
    assert places == sorted(places)
    assert reached[-1] == "list of moves"
    assert len(reached) < 30
    page.locator("#state-Prepare").focus()
    press(page, "ArrowRight", "Enter")
    page.locator("#state-BuildMessages[aria-pressed=true]").wait_for()
    page.get_by_label("more", exact=True).click()
    page.get_by_role("button", name="Compare with …").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Compare with …").wait_for(state="hidden")
    expect(page.get_by_label("more", exact=True)).to_be_focused()
    page.locator(".picker summary").click()
    page.get_by_role("button", name="new turn").wait_for()
    page.locator("#map").click(position={"x": 4, "y": 4})
    page.get_by_role("button", name="new turn").wait_for(state="hidden")


def test_nothing_moves_when_reduced_motion_is_set(browser: Browser, home: Path) -> None:
    workshop = workshop_of(home, paced(40, 0.1), settings=LONG)
    page = browser.open(browser.serve(workshop, workshop.start("go").id).url, still=True)
    press(page, "c", runs="running")
    assert page.evaluate("document.getAnimations().length") == 0
    press(page, "x", runs="ended")


def test_a_question_at_a_terminal_elsewhere_is_answered_on_the_page(browser: Browser, home: Path) -> None:
    elsewhere = Elsewhere(home, 1, attended=True)
    try:
        page = browser.open(browser.serve(DebugSession(elsewhere.store), elsewhere.turn).url)
        elsewhere.go_on()
        card = page.get_by_role("alertdialog", name="May this run?")
        card.get_by_text("The process that runs the turn asks, too").wait_for()
        card.get_by_role("button", name="allow once").click()
        engine(page, "ended")
        choose(page, "Messages")
        page.get_by_label("inspector").get_by_text("painted wall").first.wait_for()
    finally:
        elsewhere.close()


def test_children_are_listed_below_the_turn_that_began_them(browser: Browser, home: Path) -> None:
    cats = Agent(ScriptedModel([text("meow")]), name="cats", toolsets=[], home=home)
    script = [tools(call("cats", {"task": "Ask the cat"})), text("done")]
    boss = Agent(ScriptedModel(script), name="boss", toolsets=[], tools=[cats.as_tool()], home=home)
    result = scenes.apart(lambda: boss.run_conversation("What says the cat?"))
    page = browser.open(browser.serve(DebugSession(store_for(home, "normal")), result.turn_id).url)
    page.locator(".picker summary").click()
    parent, child = (page.locator(".picker li", has_text=asked) for asked in ("What says", "Ask the cat"))
    expect(parent).to_contain_text("boss · ")
    expect(child).to_contain_text("child · cats · ")
    buttons = (one.locator("button").bounding_box() for one in (parent, child))
    left = [box["x"] for box in buttons]
    assert left[1] > left[0] + 10


def test_a_home_without_turns_says_so_on_the_page_itself(browser: Browser, home: Path) -> None:
    page = browser.visit(browser.serve(workshop_of(home, repeat(provider))).url)
    title = page.get_by_role("heading", name="No turns yet")
    expect(title).to_have_css("background-color", "rgba(0, 0, 0, 0)")
    page.get_by_role("button", name="new turn").click()
    hint, field = (page.get_by_role("dialog").locator(what).bounding_box() for what in ("p", "textarea"))
    assert hint["y"] + hint["height"] + 4 <= field["y"]


def test_nothing_lies_over_what_is_read(browser: Browser, home: Path) -> None:
    """The positions below the lanes are not under a marker, no control is on the table, and the controls of a
    message are beside each other."""
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), failed_turn(home)).url)
    page.locator(".marker").first.wait_for()
    lanes = page.locator(".lane-canvas").bounding_box()
    names = page.locator(".lane-names").bounding_box()
    for marker in page.locator(".marker").all():
        box = marker.bounding_box()
        assert (
            box["y"] + box["height"] <= names["y"] + names["height"] + 1 < lanes["y"] + lanes["height"] - 16
        )
    choose(page, "Messages")
    buttons = page.locator(".message header").first.locator("button")
    first, second = buttons.first.bounding_box(), buttons.nth(1).bounding_box()
    assert second["x"] - (first["x"] + first["width"]) < 20
    choose(page, "State")
    figures = page.locator(".counters tr", has_text="attempts").locator("td").first
    expect(figures).to_have_css("white-space", "nowrap")
    page.locator(".switch button", has_text="Table").click()
    bottom = page.locator(".switch.size").bounding_box()
    assert page.locator("#table-state-Prepare").bounding_box()["y"] >= bottom["y"] + bottom["height"]


WRITTEN = """() => {
    window.written = [];
    const pen = CanvasRenderingContext2D.prototype, { clearRect, fillText } = pen;
    pen.clearRect = function (...place) {
        written.length = 0;
        clearRect.call(this, ...place);
    };
    pen.fillText = function (text, ...place) {
        written.push(text);
        fillText.call(this, text, ...place);
    };
}"""
"""Keep the words of the last drawing in ``written``."""


def test_the_axis_of_a_part_of_a_turn_has_round_numbers(browser: Browser, home: Path) -> None:
    turn = long_turn(home, 60)
    lengthened(store_for(home, "normal"), turn, 5_000)
    page = browser.open(browser.serve(workshop_of(home, repeat(provider)), turn).url)
    page.evaluate(WRITTEN)
    page.locator(".lanes").hover()
    page.get_by_role("button", name="zoom in").click()
    page.wait_for_function("() => written.length > 4 && Number(written[0]) > 0")
    written = [int(text) for text in page.evaluate("() => written")]
    assert all(number % 100 == 0 for number in written)
