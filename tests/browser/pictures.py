"""``python -m tests.browser.pictures``: the pictures of docs/debugger.md, taken of the real page."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from examples.review_loop import workflow
from fsm_agent.debug import DebugSession
from fsm_agent.debug.web.app import DebugServer
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import repeat
from tests.browser.acting import engine, looks_at, more, press
from tests.browser.scenes import TAIL, cleaner, failed_turn, lengthened, long_turn, provider, workshop_of
from tests.helpers.page_pictures import keep_digests

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = {"width": 1280, "height": 800}
LOADED = """() => document.querySelector("#panel[aria-busy=false] h2")
    && document.querySelector(".lane-canvas[aria-busy=false]")
    && !document.querySelector(".held .buttons button[aria-disabled=true]")
    && ![...document.querySelectorAll("[id^=move-] .wide")].some((one) => one.textContent === "…")"""
"""The lanes, the moves in view, and the one that is looked at, have come; what is asked may be answered."""


def main() -> None:
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp())
    turn = failed_turn(home)
    workshops = [workshop_of(home, repeat(provider)), workshop_of(Path(tempfile.mkdtemp()), repeat(cleaner))]
    servers = [
        DebugServer(workshops[0], first=turn),
        DebugServer(workshops[1], first=workshops[1].start("Remove the duplicate").id),
    ]
    for server in servers:
        server.start()
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tour(opened(browser, servers[0].url))
        approval(opened(browser, servers[1].url, dark=True))
        long = long_turn(home, 60)
        lengthened(store_for(home, "normal"), long, 20_000)
        own_table(browser)
        page = opened(browser, servers[0].url.replace(turn, long), dark=True)
        looks_at(page, "20,000 of 20,000")
        page.locator(".lane-canvas").click(position={"x": 300, "y": 20})
        page.get_by_role("button", name="follow the engine").wait_for()
        shot(page, "debugger-20000-moves")
        browser.close()
    for server, workshop in zip(servers, workshops, strict=True):
        server.stop()
        workshop.close()
    keep_digests()


def opened(browser: Any, url: str, dark: bool = False) -> Any:
    page = browser.new_context(viewport=SIZE, color_scheme="dark" if dark else "light").new_page()
    page.goto(url)
    looks_at(page, "of")
    return page


def shot(page: Any, name: str) -> None:
    page.wait_for_function(LOADED)
    page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")


def tour(page: Any) -> None:
    """A turn that hit an overflow, found and cured by a fork from before the tool call."""
    looks_at(page, "8 of 8")
    page.get_by_label("only moves that called").wait_for()
    shot(page, "debugger-failed")
    press(page, "b", "b", shows="6 of 8")
    shot(page, "debugger-back")
    press(page, "b", "b", shows="4 of 8")
    page.locator("#arrow-CallLLM-ClassifyError .label").click()
    page.get_by_role("button", name="fork with another result of read_log").click()
    page.get_by_role("dialog").get_by_label("Result of a tool", exact=True).fill(TAIL)
    shot(page, "debugger-fork")
    page.get_by_role("dialog").get_by_role("button", name="Fork with these changes").click()
    engine(page, "paused.*3 moves")
    press(page, "o", runs="paused.*5 moves")
    page.get_by_label("only moves that called").wait_for()
    shot(page, "debugger-step")
    press(page, "c", runs="ended")
    more(page, "Compare with …")
    page.get_by_role("dialog").get_by_role("button", name=re.compile("failed")).click()
    for side in ("left", "right"):
        page.get_by_label(f"{side} move").wait_for()
    shot(page, "debugger-compare")


def own_table(browser: Any) -> None:
    """A review of the example, held back before the writer is asked to revise."""
    workshop = DebugSession.of_workflow(workflow(home=Path(tempfile.mkdtemp())))
    debugger = workshop.start("Say what a finite-state machine is.")
    server = DebugServer(workshop, first=debugger.id)
    server.start()
    page = opened(browser, server.url)
    for number in (1, 2):
        press(page, "n", runs=f"paused.* after {number} move")
    debugger.order("hold", {"kinds": ["request"]})
    page.keyboard.press("c")
    page.get_by_role("alertdialog").wait_for()
    shot(page, "debugger-own-table")
    page.context.close()
    server.stop()
    workshop.close()


def approval(page: Any) -> None:
    page.keyboard.press("c")
    page.get_by_role("alertdialog").wait_for()
    shot(page, "debugger-approve")


if __name__ == "__main__":
    main()
