"""What a person does to the page, and what it says then. A test reads the page with ``expect``, which waits: the page
draws an answer when it arrives."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.helpers.waiting import PATIENCE

expect = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=1_000 * PATIENCE)
DRAWN = "#panel[aria-busy=false] > *"
"""What the inspector says of the position that is looked at."""


def engine(page: Any, words: str) -> None:
    expect(page.locator(".chip.engine")).to_have_text(re.compile(words))
    page.locator(DRAWN).first.wait_for()


def looks_at(page: Any, words: str) -> None:
    expect(page.locator(".chip.look")).to_have_text(re.compile(words))
    page.locator(DRAWN).first.wait_for()


def press(page: Any, *keys: str, runs: str = "", shows: str = "") -> None:
    """Press keys; wait until the engine, or the place that is looked at, is said to be this."""
    for key in keys:
        page.keyboard.press(key)
    if runs:
        engine(page, runs)
    if shows:
        looks_at(page, shows)


def choose(page: Any, tab: str) -> None:
    """Choose what to inspect."""
    page.get_by_role("tab", name=tab).click()
    page.get_by_role("tab", name=tab, selected=True).wait_for()
    page.locator(DRAWN).first.wait_for()


def more(page: Any, name: str) -> None:
    """Choose from the menu behind the other buttons."""
    page.get_by_label("more", exact=True).click()
    page.get_by_role("button", name=name).click()


def fill(page: Any, label: str, words: str) -> None:
    field = page.get_by_label(label)
    field.fill(words)
    field.press("Tab")


def fork_with(page: Any, counter: str, value: str) -> None:
    """Fork the turn where it is looked at, with another value of a counter."""
    choose(page, "State")
    page.get_by_role("button", name="fork with other counters").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(counter).fill(value)
    dialog.get_by_role("button", name="Fork with these changes").click()
