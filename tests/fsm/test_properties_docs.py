"""Every block of docs/properties.md, in one namespace from top to bottom, and what the page says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.fsm import properties
from fsm_agent.fsm.verify.properties import judge

PAGE = Path(__file__).parents[2] / "docs" / "properties.md"
TEXT = PAGE.read_text(encoding="utf-8")
SENTENCES = ("never", "only_if", "eventually", "at_most")


def test_the_page_runs_and_says_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {"__name__": "docs_properties"}
    for match in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        exec(compile("\n" * TEXT.count("\n", 0, match.start()) + match[1], str(PAGE), "exec"), space)
    verdicts = judge(space["PARCEL"])
    assert [one.verdict for one in verdicts] == ["proved"] * 4 + ["refuted"]
    assert f"refuted by `{verdicts[-1].counterexample}`" in TEXT
    assert "Who paid gets the parcel or the money. (after row Pay.paid" in capsys.readouterr().out


def test_the_page_names_every_word_of_the_language() -> None:
    made = {
        name
        for name, value in vars(properties).items()
        if getattr(value, "__annotations__", {}).get("return") in ("Moves", "Property")
    }
    tables = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    assert {name for name in made if not name.startswith("_")} == {
        name for name in re.findall(r"\b(\w+)\b", tables) if name in made
    }
    assert set(SENTENCES) <= made
