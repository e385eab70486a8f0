"""The pytest plugin, as a project that installs it sees it: silent until asked, and the same figures under xdist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fsm_agent_states.table import TURN
from tests.helpers.processes import environment, ran

ROOT = Path(__file__).parents[2]
TABLE = """
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on

AGAIN = Rung("drive again", "Drive", left("tries"), ("tries",))
PARCEL = Table("parcel", ("Pack", "Drive", "Done"), "Done", (Counter("tries"),), lines_of({
    "Pack": [on("packed", go("Drive"), why="")],
    "Drive": [on("arrived", end("delivered", "Done"), why=""), on("broken", AGAIN, end("lost", "Done"), why="")],
}))
"""
TESTS = """
import pytest
from fsm_agent.testing import play, row_scripts
from parcel import PARCEL

@pytest.mark.parametrize("script", row_scripts(PARCEL, {"tries": 0}), ids=lambda script: script.name)
def test_script(script):
    play(PARCEL, script)

def test_fixtures(fake_clock, scripted_model):
    from fsm_agent.testing import FakeClock, ScriptedModel, text
    assert isinstance(fake_clock, FakeClock)
    assert isinstance(scripted_model(text("hi")), ScriptedModel)
"""
AGENTS = """
from fsm_agent import Agent
from fsm_agent.testing import ScriptedModel, text

def test_one():
    agent = Agent(ScriptedModel([text("hi")]))
    agent.chat("go")
    assert len(agent.journal.recent()) == 1

def test_two():
    assert not Agent(ScriptedModel([])).journal.recent()
"""
INERT = """
import sys

def test_nothing_of_the_engine_is_loaded():
    loaded = {name for name in sys.modules if name.startswith("fsm_agent")}
    small = {"runtime", "runtime.events", "support", "testing", "testing.plugin"}
    assert loaded <= {"fsm_agent", *("fsm_agent." + name for name in small)}
    assert not loaded & {"pydantic", "transitions", "hypothesis"}

HOMES = []

def test_a_home_is_made():
    import os
    HOMES.append(os.environ["FSM_AGENT_HOME"])
    os.makedirs(HOMES[0])

def test_another_one_is_empty():
    import os
    assert os.environ["FSM_AGENT_HOME"] not in HOMES
    assert not os.path.exists(os.environ["FSM_AGENT_HOME"])
    print("HOME", HOMES[0])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "parcel.py").write_text(TABLE)
    (tmp_path / "test_parcel.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\npythonpath = .\n")
    return tmp_path


def run(
    project: Path, *options: str, plugins: str = "fsm_agent.testing.plugin"
) -> subprocess.CompletedProcess[str]:
    """Pytest in a folder, with these plugins and no others; without any, with those that are installed."""
    env = environment(project, **({"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} if plugins else {}))
    loaded = [part for plugin in plugins.split() for part in ("-p", plugin)]
    return ran("-m", "pytest", "-q", "-p", "no:cacheprovider", *loaded, *options, cwd=project, env=env)


def rows(file: Path) -> dict[str, int]:
    written = json.loads(file.read_text())
    assert (set(written), written["table"]) == ({"table", "rows"}, "parcel")
    counts: dict[str, int] = written["rows"]
    return counts


@pytest.mark.slow
def test_the_rows_of_a_run_are_written_and_drawn(project: Path) -> None:
    options = ("--fsm-coverage-diagram", "rows.svg", "--fsm-coverage-table", "parcel:PARCEL")
    done = run(project, "--fsm-coverage", "rows.json", *options)
    assert done.returncode == 0, done.stdout
    counts = rows(project / "rows.json")
    assert list(counts) == ["Pack.packed", "Drive.arrived", "Drive.broken/1", "Drive.broken/2"]
    assert list(counts.values()) == [2, 1, 0, 1]
    assert "parcel: 3 of 4 rows taken (75%); never taken: Drive.broken/1" in done.stdout
    picture = (project / "rows.svg").read_text()
    assert "3 of 4 rows" in picture
    assert "never" in picture


@pytest.mark.slow
def test_the_workers_of_xdist_are_added_up(project: Path) -> None:
    with (project / "pytest.ini").open("a") as file:
        file.write("fsm_coverage_table = parcel:PARCEL\n")
    assert run(project, "--fsm-coverage", "one.json").returncode == 0
    both = "fsm_agent.testing.plugin xdist.plugin"
    done = run(project, "--fsm-coverage", "two.json", "-n", "2", plugins=both)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(project / "two.json") == rows(project / "one.json")
    assert done.stdout.count("rows taken") == 1


def test_it_gives_each_test_a_home_and_loads_nothing_when_it_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_inert.py").write_text(INERT)
    monkeypatch.delenv("FSM_AGENT_HOME")
    done = run(tmp_path, "-W", "error", "-s")
    assert done.returncode == 0, done.stdout
    assert "transition table" not in done.stdout
    home = Path(re.findall("HOME (.*)", done.stdout)[0])
    assert not home.parent.exists(), "removed at the end of the run"


@pytest.mark.slow
@pytest.mark.behaviour("HOST-07")
def test_agents_of_a_test_run_leave_nothing_in_the_home_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FSM_AGENT_HOME")
    for name in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "account"))
    (tmp_path / "test_agents.py").write_text(AGENTS)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert not (tmp_path / "account").exists()
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path / "mine"))
    assert run(tmp_path, "-k", "one").returncode == 0
    assert (tmp_path / "mine").is_dir(), "a home that was named stays what it is"


@pytest.mark.slow
def test_strategies_without_hypothesis_name_the_line_that_installs_it() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import fsm_agent.testing.strategies"
    done = ran("-c", code)
    assert done.returncode != 0
    line = r"ConfigError: strategies need .* given: hypothesis; allowed: .*install .*testing"
    assert re.search(line, done.stderr)


@pytest.mark.slow
def test_it_is_there_once_installed_and_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing(fake_clock): pass\n")
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = tmp_path / "installed-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    points = "".join(f"{key} = {value}\n" for key, value in name.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{points}")
    assert run(tmp_path, plugins="").returncode == 0
    refused = run(tmp_path, "-p", "no:fsm_agent.testing.plugin", "--fsm-coverage", "x.json", plugins="")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unrecognized arguments: --fsm-coverage" in refused.stderr


@pytest.mark.slow
def test_a_table_in_the_projects_folder_needs_no_path(project: Path) -> None:
    """As ``pytest`` runs, which does not put the current directory on the path as ``python -m pytest`` does."""
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    path = f"import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.append({str(ROOT)!r})"
    options = ["--fsm-coverage", "rows.json", "--fsm-coverage-table", "parcel:PARCEL"]
    asked = ["-p", "fsm_agent.testing.plugin", "-q", *options]
    command = [sys.executable, "-I", "-c", f"{path}; import pytest; sys.exit(pytest.main({asked!r}))"]
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((project / "rows.json").read_text())["table"] == "parcel"


@pytest.mark.parametrize("named", [pytest.param("nowhere:TABLE", marks=pytest.mark.slow), "parcel:AGAIN"])
def test_a_table_that_is_none_is_wrong_use(project: Path, named: str) -> None:
    done = run(project, "--fsm-coverage", "rows.json", "--fsm-coverage-table", named)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"--fsm-coverage-table {named}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_file_that_cannot_be_written_fails_the_run(project: Path) -> None:
    done = run(project, "--fsm-coverage", "no/such/folder/rows.json", "--fsm-coverage-table", "parcel:PARCEL")
    assert done.returncode != 0
    assert "no/such/folder/rows.json cannot be written: No such file or directory" in done.stdout


@pytest.mark.slow
def test_the_turn_of_the_package_is_the_table_when_none_is_named(project: Path) -> None:
    (project / "test_turn.py").write_text(AGENTS)
    options = ("--fsm-coverage", "rows.json", "--fsm-coverage-diagram", "rows.svg")
    done = run(project, "test_turn.py", "-k", "one", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads((project / "rows.json").read_text())["rows"]
    taken = {row for row, count in counts.items() if count}
    assert taken == {"Prepare.ready", "BuildMessages.built/3", "CallLLM.text"}
    assert len(counts) == len(TURN.rows)
    assert f"3 of {len(TURN.rows)} rows" in (project / "rows.svg").read_text()
