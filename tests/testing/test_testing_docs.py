"""Every block of docs/testing.md: Python is run from top to bottom as on the other pages, its tests too, and the example
prints what is shown."""

from __future__ import annotations

import inspect
import re
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fsm_agent.testing import FakeClock, ScriptedModel, strategies
from fsm_agent.testing.invariants import INVARIANTS
from tests.helpers.page_blocks import PageBlocks

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[tuple[int, str]]:
    """The blocks of a language with the line that each begins on."""
    page = PAGE.read_text(encoding="utf-8")
    found = ((page.count("\n", 0, match.start()) + 2, match) for match in BLOCK.finditer(page))
    return [(line, match[2]) for line, match in found if match[1] == kind]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page defines, after all of it was run in an empty folder."""
    blocks = PageBlocks(PAGE, tmp_path_factory.mktemp("work"), commands=False)
    blocks.run()
    return blocks.namespace


def test_every_python_block_runs(page: dict[str, Any]) -> None:
    assert len(blocks("python")) >= 9
    tests = {name for name in page if name.startswith("test_")}
    assert tests == {"test_parcel", "test_every_turn_ends", "test_a_greeting"}


def test_the_tests_on_the_page_pass(page: dict[str, Any], tmp_path: Path) -> None:
    for script in page["SCRIPTS"]:
        page["test_parcel"](script)
    clock = FakeClock()
    scripted_model: Callable[..., ScriptedModel] = lambda *script: ScriptedModel(script, clock=clock)  # noqa: E731
    page["test_a_greeting"](scripted_model, clock, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unittest's loader, not ours
        case = page["TestParcel"]()
    page["TestParcel"].settings = settings(max_examples=10, deadline=None)
    case.runTest()


def test_the_tables_name_everything_there_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "every row is run on the real engine" in text
    for invariant in INVARIANTS:
        assert f"`{invariant.__name__}`" in text
    for name in strategies.__all__:
        if not inspect.isclass(getattr(strategies, name)):
            assert re.search(rf"`{name}\(", text), name
    for link in re.findall(r"\]\(\.\./([\w/.]+)\)", text):
        assert (PAGE.parents[1] / link).exists(), link
    lines = (line[3:] for line in text.splitlines() if line.startswith("## "))
    headings = {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines}
    for anchor in re.findall(r"\]\(#([\w-]+)\)", text):
        assert anchor in headings, anchor


def test_the_example_prints_what_the_page_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["review_loop"])
    runpy.run_path(str(PAGE.parents[1] / "examples" / "review_loop.py"), run_name="__main__")
    printed = capsys.readouterr().out.rstrip()
    console = "\n".join(block for _, block in blocks("console"))
    assert printed in console
