"""What a person does to the page, and what it says then."""

from __future__ import annotations

import re
from typing import Any


def engine(page: Any, words: str) -> None:
    page.locator(".chip.engine", has_text=re.compile(words)).wait_for()


def looks_at(page: Any, words: str) -> None:
    page.locator(".chip.look", has_text=re.compile(words)).wait_for()


def press(page: Any, *keys: str, runs: str = "", shows: str = "") -> None:
    """Press keys; wait until the engine, or the place that is looked at, is said to be this."""
    for key in keys:
        page.keyboard.press(key)
    if runs:
        engine(page, runs)
    if shows:
        looks_at(page, shows)


def more(page: Any, name: str) -> None:
    """Choose from the menu behind the other buttons."""
    page.get_by_label("more", exact=True).click()
    page.get_by_role("button", name=name).click()


def fill(page: Any, label: str, words: str) -> None:
    field = page.get_by_label(label)
    field.fill(words)
    field.press("Tab")
