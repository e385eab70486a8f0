"""The Python of docs/agent.md is run from top to bottom, and its tables name everything there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.composition.options import FILE_SERVERS
from fsm_agent.conversation.exit_reason import ExitReason
from fsm_agent.toolsets import TOOLSETS
from fsm_agent.toolsets.agent import AGENT_TOOLSETS

PAGE = Path(__file__).parents[2] / "docs" / "agent.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_python_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "pyproject.toml", "docs/page.md"):
        (tmp_path / name).write_text("# Title\nsome words\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path / "home"))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "FSM_AGENT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    space: dict[str, Any] = {"__name__": "docs_agent"}
    for match in BLOCK.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        exec(compile("\n" * line + match[1], str(PAGE), "exec"), space)
    out = capsys.readouterr().out
    for shown in ("84", "CallLLM tools → ExecuteTools CallLLM.tools", "text_response True False False False", "sunny for 1",
                  "ran list_directory ok", "tool_start ToolStart(call_id=", "Finalize", "3+3 = 6",
                  "decided: True"):  # fmt: skip
        assert shown in out


def test_the_page_on_people_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path / "home"))
    space: dict[str, Any] = {"__name__": "docs_people"}
    page = PAGE.with_name("people.md")
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(block, str(page), "exec"), space)
    out = capsys.readouterr().out
    assert "pay wants to run" in out
    assert "paid 7" in out


def test_the_tables_of_the_python_guide_are_whole() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for reason in ExitReason:
        row = next(line for line in page.splitlines() if line.startswith(f"| {reason.outcome.value} |"))
        assert f"`{reason.value}`" in row
    named = re.search(r"Built-in toolsets \((.*?)\)", page, re.DOTALL)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named[1])) == {*TOOLSETS, *AGENT_TOOLSETS, FILE_SERVERS}
