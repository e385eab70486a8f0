"""What other projects use: the command line, the GitHub action, the pre-commit hooks, Graphviz."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsm_agent.diagram import render, written
from fsm_agent.diagram.graph_languages import laid_out
from fsm_agent.diagram.model import words
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent_states.table import TURN
from tests.diagram.test_diagram import visible_text, vocabulary
from tests.diagram.test_diagram_runs import exported
from tests.diagram.test_diagram_versions import TABLE_FILE
from tests.helpers.diagram_tables import OTHER, SMALL, USUAL, coverage_of, steps
from tests.helpers.processes import ran
from tests.helpers.tables import courier

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "diagram-diff"

Cli = Callable[..., tuple[int, str, str]]


# The command line


@pytest.mark.parametrize("form", ["mermaid", "dot", "svg", "md", "json"])
def test_every_view_has_every_format(form: str, cli: Cli, tmp_path: Path) -> None:
    source = exported(tmp_path / "turn.jsonl", ("a", steps(TURN, USUAL)))
    for view in (["--state", "CallLLM"], ["--overlay", source], ["--coverage", source, "--coverage", source]):
        code, out, err = cli("diagram", "--format", form, *view)
        assert (code, err) == (0, "")
        if form == "svg":
            ET.fromstring(out)
        if form == "json":
            json.loads(out)
        assert "CallLLM" in out
    assert cli("diagram", "show", "--format", form) == cli("diagram", "-f", form)


def test_a_table_of_the_users_own_has_every_view(cli: Cli, tmp_path: Path) -> None:
    name = "tests.helpers.diagram_tables:SMALL"
    (tmp_path / "rows.json").write_text(json.dumps({"table": "small", "rows": {"Act.ok": 3}}))
    near = cli("diagram", name, "--state", "Check")[1]
    assert "Check --> Think : ask" in near
    assert "Act" not in near
    text = visible_text(cli("diagram", name, "--coverage", str(tmp_path / "rows.json"), "-f", "svg")[1])
    assert "→ Think ×3" in text
    assert "1 of 4 rows" in text
    assert "1 of 16 rows (6 %) taken by 3 moves." in text


def test_the_exit_code_is_that_of_git_diff(cli: Cli, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one.json"), str(tmp_path / "other.json")
    for table, file in ((SMALL, one), (OTHER, other)):
        Path(file).write_text(render(table, "json"))
    assert cli("diagram", "diff", one, one, "--exit-code")[0] == 0
    code, out, err = cli("diagram", "diff", one, other)
    assert (code, err) == (0, "")
    assert "1 row removed, 1 row changed" in out
    assert cli("diagram", "diff", one, other, "--exit-code")[0] == 1
    assert json.loads(cli("diagram", "diff", one, other, "--json")[1])["changed"] is True
    figures = cli(
        "diagram", "diff", one, other, *(f"--set={limit}=2" for limit in ("asks", "acts", "fixes"))
    )[1]
    assert re.search(r"\| moves, without caps \| \d+ \| \d+ \|", figures)
    for form in ("mermaid", "svg"):
        assert "give back" in cli("diagram", "diff", one, other, "--format", form)[1]


# Actions and hooks


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.slow
def test_the_hooks_run_what_is_there(tmp_path: Path) -> None:
    hooks = {hook["id"]: hook for hook in load(ROOT / ".pre-commit-hooks.yaml")}
    assert set(hooks) == {"fsm-agent-diagrams", "fsm-agent-verify"}
    for hook in hooks.values():
        assert {"id", "name", "entry", "language", "pass_filenames"} <= set(hook)
        assert hook["pass_filenames"] is False
    used = load(ROOT / "examples" / "github" / "pre-commit-config.yml")["repos"][0]["hooks"]
    assert {hook["id"] for hook in used} == set(hooks)
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "table.py").write_text(TABLE_FILE.replace("LOOP =", "TABLE ="))

    def run(name: str) -> int:
        """As pre-commit does, in the project's folder."""
        arguments = next(hook["args"] for hook in used if hook["id"] == name)
        first, *words = [*shlex.split(hooks[name]["entry"]), *arguments]
        module = ["-m", "fsm_agent.cli"] if first == "fsm-agent" else []
        return ran(*module, *words, cwd=tmp_path).returncode

    assert run("fsm-agent-diagrams") == 1
    made = ran("-m", "fsm_agent.diagram", "diagrams", "--table=mypackage.table:TABLE", cwd=tmp_path)
    assert made.returncode == 0
    assert run("fsm-agent-diagrams") == 0
    assert run("fsm-agent-verify") == 0


def test_the_action_and_its_workflow_fit_together() -> None:
    action, workflow = load(ACTION / "action.yml"), load(ROOT / "examples" / "github" / "diagram-diff.yml")
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "values come through the environment, never into a script"
        for script in re.findall(r"\$GITHUB_ACTION_PATH/([\w.]+)", step["run"]):
            assert (ACTION / script).is_file()
    (job,) = workflow["jobs"].values()
    (used,) = (step for step in job["steps"] if "diagram-diff" in step["uses"])
    assert used["uses"].split("@")[0].endswith(str(ACTION.relative_to(ROOT)))
    assert set(used["with"]) <= set(action["inputs"])
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert list(workflow[True]) == [
        "pull_request"
    ]  # YAML 1.1 reads the word "on" so; never pull_request_target


# Graphviz


@pytest.mark.parametrize("table", [TURN, SMALL, courier()], ids=lambda table: table.name)
def test_dot_says_the_same_and_is_plain(table: Table) -> None:
    text = render(table, "dot").replace('\\"', "''")
    assert "label=<" not in text
    assert [name for name in vocabulary(table) if name not in text] == []
    marked = written(coverage_of(table) if table is TURN else coverage_of(TURN), "dot")
    assert "style=dashed" in marked
    assert "penwidth=" in marked


@pytest.mark.slow
@pytest.mark.parametrize("table", [TURN, SMALL, courier()], ids=lambda table: table.name)
def test_graphviz_draws_every_rows_label(table: Table) -> None:
    svg = laid_out(render(table, "dot"))
    text = visible_text(svg).replace("\u00a0", " ")
    assert [name for name in vocabulary(table) if name not in text] == []
    assert {state for state in table.states if state not in text} == set()
    assert "Courier" not in svg
    assert 'font-family="DejaVu Sans, Verdana, sans-serif"' in svg
    assert words("gave_up") in text or table is not SMALL


@pytest.mark.slow
def test_graphviz_says_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match="graphviz cannot draw this"):
        laid_out("digraph {")
