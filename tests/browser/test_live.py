"""The page of a table that is written: shown within a second of a save, stepped and edited by keyboard alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.acting import expect
from tests.browser.axe import violations
from tests.browser.conftest import Browser
from tests.debug.test_live_loading import committed
from tests.debug.test_live_patch import SHORT

pytestmark = pytest.mark.slow

READY = "#verdict.good"
STATES = 30
HEAD = """from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on

NAMES = tuple(f"S{n}" for n in range(30)) + ("Done",)
RETRY = {name: Rung("retry", name, left("retries"), ("retries",)) for name in NAMES}
FALLBACK = Rung("fallback", "S0", left("fallbacks"), ("fallbacks",), ("retries",))
LIMITS = {"retries": 3, "fallbacks": 2}
TABLE = Table("wide", NAMES, "Done", tuple(Counter(name) for name in LIMITS), lines_of({
"""
WATCH = """() => {
  window.saved = [];
  const look = () => {
    const mark = document.querySelector("main")?.dataset.mark;
    const verdict = document.querySelector("#verdict")?.textContent;
    const last = window.saved.at(-1);
    if (last?.mark !== mark || last?.verdict !== verdict) window.saved.push({ mark, verdict, at: Date.now() / 1000 });
  };
  look();
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
}"""


def wide() -> str:
    """Return a module with a table of 30 states and 210 rows."""
    parts = []
    for number in range(STATES):
        after = f'go("S{number + 1}")' if number + 1 < STATES else 'end("done", "Done")'
        lines = [
            f'on("ok", {after}, why="it went well")',
            f'on("bad", RETRY["S{number}"], FALLBACK, end("failed", "Done"), why="it did not")',
            f'on("slow", RETRY["S{number}"], end("late", "Done"), why="it took too long")',
            'on("refused", end("refused", "Done"), why="not allowed")',
        ]
        parts.append(f'    "S{number}": [\n        ' + ",\n        ".join(lines) + ",\n    ],\n")
    return HEAD + "".join(parts) + "}))\n"


def times(page: Any, path: Path, text: str) -> dict[str, float]:
    """Save, and return after how many seconds of the file's own time the page showed what."""
    page.evaluate(WATCH)
    known = page.evaluate("() => window.saved[0].mark")
    path.write_text(text)
    page.wait_for_function(
        "(known) => { const last = saved.at(-1); return last.mark !== known && !/…$/.test(last.verdict); }",
        arg=known,
    )
    saved = path.stat().st_mtime
    seen = [one for one in page.evaluate("() => window.saved") if one["mark"] != known]
    return {"picture and rows": seen[0]["at"] - saved, "proof and bounds": seen[-1]["at"] - saved}


def test_how_long_a_save_takes_to_be_shown(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = committed(tmp_path, wide())
    page = browser.open(browser.serve_live(path).url, ready=READY)
    found = [
        times(
            page, path, wide().replace(f'"S{n}": [\n        on("ok", go', f'"S{n}": [\n        on("fine", go')
        )
        for n in (3, 7, 11, 15, 19)
    ]
    with capsys.disabled():
        for name in found[0]:
            took = sorted(one[name] for one in found)
            print(f"\n210 rows, {name}: {took[len(took) // 2]:.2f} s in the middle, {took[-1]:.2f} s at most")


def test_a_save_is_shown_and_a_broken_one_says_where(browser: Browser, tmp_path: Path) -> None:
    path = committed(tmp_path, wide())
    page = browser.open(browser.serve_live(path).url, ready=READY)
    changed = wide().replace('RETRY["S4"], FALLBACK, end', 'FALLBACK, RETRY["S4"], end')
    assert times(page, path, changed)["proof and bounds"] < 30
    page.get_by_label("what changed").get_by_text("S4.bad/1").first.wait_for()
    path.write_text(changed + "x = (\n")
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"Line .*'\(' was never closed"))
    expect(page.locator("#state-S4")).to_have_count(1)
    path.write_text(changed)
    page.wait_for_selector(READY)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert violations(page) == []


def test_a_run_against_the_table_is_stepped_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    path = committed(tmp_path, SHORT)
    page = browser.open(browser.serve_live(path).url, ready=READY)
    path.write_text(SHORT.replace('("tries",))', "())", 1))
    page.wait_for_selector("#verdict.bad")
    forward = page.get_by_role("button", name="one move forward")
    forward.wait_for()
    reach(page, "one move forward")
    page.keyboard.press("Enter")
    page.get_by_text("Move 1 of 2: A · failed → A").wait_for()
    page.locator("#arrow-A-A.look").wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_text("this repeats without end").wait_for()
    page.keyboard.press("Home")
    page.get_by_text("Before the first of 2 moves, in A").wait_for()
    assert violations(page) == []


def test_rows_and_limits_are_edited_by_keyboard_and_written(browser: Browser, tmp_path: Path) -> None:
    path = committed(tmp_path, SHORT)
    page = browser.open(browser.serve_live(path).url, ready=READY)

    reach(page, "add a rung to A.done")
    page.keyboard.press("Enter")
    page.get_by_label("remedy").wait_for()
    reach(page, "remedy")
    page.keyboard.type("again")
    reach(page, "Prove and add")
    page.keyboard.press("Enter")
    page.get_by_text("Proved and written: a rung was added to A.done").wait_for()
    assert 'on("done", AGAIN, end("done", "B"), why="an answer")' in path.read_text()
    assert "# a second try is cheap" in path.read_text()
    page.get_by_label("what changed").get_by_text("A.done/1").wait_for()

    reach(page, "tries", role="spinbutton")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.get_by_text("Proved and written: tries 4").wait_for()
    assert '"tries": 4' in path.read_text()
    page.wait_for_function(
        "() => document.querySelector('.limit input').value === '4' && !document.querySelector('.limit button')"
    )

    before = path.read_text()
    reach(page, "move again → A if tries left down in A.failed")
    page.keyboard.press("Enter")
    page.get_by_text("Not written, because the changed table is not proved").wait_for()
    assert path.read_text() == before
    reach(page, "take the last change of this page back")
    page.keyboard.press("Enter")
    page.get_by_text("The change was taken back").wait_for()
    assert '"tries": 3' in path.read_text()
    assert violations(page) == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_page(width: int, dark: bool, browser: Browser, tmp_path: Path) -> None:
    path = committed(tmp_path, wide())
    path.write_text(wide().replace('RETRY["S4"], FALLBACK, end', 'FALLBACK, RETRY["S4"], end'))
    page = browser.open(browser.serve_live(path).url, width, 800, dark, ready=READY)
    page.get_by_label("what changed").get_by_text("S4.bad/1").first.wait_for()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert violations(page) == []


def reach(page: Any, name: str, role: str = "") -> None:
    """Press Tab until the control of this name has the focus."""
    for _ in range(200):
        page.keyboard.press("Tab")
        focused = page.evaluate("""() => {
            const one = document.activeElement;
            return one.getAttribute("aria-label") || one.labels?.[0]?.textContent.trim() || one.textContent.trim();
        }""")
        if focused == name or (
            focused.startswith(name) and not page.evaluate("() => document.activeElement.matches('button')")
        ):
            return
    raise AssertionError(f"{name} cannot be reached by keyboard")
