"""Texts that are loaded in a process of their own: whatever they do, the answer is a table or one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from fsm_agent import Agent
from fsm_agent.cli.predict import Predictor
from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.debug.live.loading import Broken, Loader
from fsm_agent.debug.live.watched import Watched
from fsm_agent.diagram.versions import Version
from fsm_agent.fsm.verify import verify_table
from fsm_agent.fsm.verify.reach import TimeLimit
from fsm_agent.fsm.verify.report import Report
from fsm_agent.testing import FakeClock, ScriptedModel, status, text
from tests.debug.test_live_patch import SHORT
from tests.helpers.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


def committed(folder: Path, text: str) -> Path:
    """Return a file in a repository with one commit."""
    path = folder / "table.py"
    path.write_text(text)
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "one")):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return path


@pytest.fixture
def seconds() -> float:
    """How long a text may take: enough for any that ends, on a busy machine too."""
    return 60


@pytest.fixture
def loader(tmp_path: Path, seconds: float) -> Iterator[Loader]:
    made = Loader(tmp_path / "short.py", seconds=seconds)
    yield made
    made.close()


BAD = [
    ("x = (\n", "SyntaxError: '(' was never closed", 17),
    ("1 / 0\n", "ZeroDivisionError: division by zero", 17), ("raise SystemExit(3)\n", "SystemExit: 3", 17),
    ("import os; os._exit(3)\n", "the process that loads the file ended with 3 and no table", None),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n", "ended with -11 and no table", None),
    ("TABLE2 = Table('b', ('a', 'b'), 'b', (), ())\n", "2 tables in", None),
    ("TABLE = 1\n", "0 tables in", None), ("def f(): f()\nf()\n", "RecursionError", 17),
    ("TABLE.__dict__['name'] = 7\nimport sys; sys.stdout.write('}{')\n", "", None),
]  # fmt: skip
ENDLESS = (
    "while True: pass\n",
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while 1: pass'])\n",
)
GIVEN_UP = [(more, "the file takes longer than 3 seconds to load", None, 3) for more in ENDLESS]


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("more", "says", "line", "seconds"), [*((*bad, 60) for bad in BAD), *GIVEN_UP])
def test_a_text_that_goes_wrong_is_one_line(more: str, says: str, line: int | None, loader: Loader) -> None:
    found = loader.load((SHORT + more).encode())
    assert isinstance(found, Broken) == bool(says)
    if isinstance(found, Broken):
        assert says in found.reason
        assert "\n" not in found.reason
        assert found.line == line
    until(lambda: isinstance(loader.load(SHORT.encode()), Version), "the next one, loaded as ever,")


def test_the_text_is_loaded_and_not_the_file(loader: Loader, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("raise SystemExit('the file')")
    (tmp_path / "words.py").write_text("WHY = 'as words say'\n")
    text = "from words import WHY\n" + SHORT.replace('why="an answer"', "why=WHY")
    found = loader.load(text.encode())
    assert isinstance(found, Version)
    assert found.table.lines[1].why == "as words say"


def test_a_text_that_is_not_wanted_any_more_is_left(loader: Loader) -> None:
    assert loader.load((SHORT + "while True: pass\n").encode(), wanted=lambda: False) is None
    assert isinstance(loader.load(SHORT.encode()), Version)


def test_a_module_in_a_package_is_loaded_as_part_of_it(tmp_path: Path) -> None:
    inside = tmp_path / "mine" / "tables"
    inside.mkdir(parents=True)
    for folder in (tmp_path / "mine", inside):
        (folder / "__init__.py").write_text("")
    (inside / "words.py").write_text("WHY = 'as words say'\n")
    path = inside / "short.py"
    path.write_text("from .words import WHY\n" + SHORT.replace('why="an answer"', "why=WHY"))
    loader = Loader(path)
    found = loader.load(path.read_bytes())
    loader.close()
    assert isinstance(found, Version), found


def test_a_save_is_compared_with_the_last_commit(tmp_path: Path) -> None:
    path = committed(tmp_path, SHORT)
    path.write_text(SHORT.replace('"tries": 3', '"tries": 7'))
    watched = Watched(path)
    watched.start()
    try:
        until(lambda: watched.view.busy == "" and watched.view.shown is not None)
        shown = watched.view.shown
        assert shown is not None
        assert shown.base.startswith("the last commit (")
        assert shown.proofs is not None
        assert [(one.old_value, one.new_value) for one in shown.proofs.bounds if one.quantity == "moves"] == [
            (4, 8)
        ]
    finally:
        watched.close()


def test_the_command_serves_the_page_until_it_is_ended(tmp_path: Path) -> None:
    path = committed(tmp_path, SHORT)
    command = [sys.executable, "-m", "fsm_agent", "diagram", "--live", f"{path}:TABLE"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("#token=")
        headers = {"x-fsm-agent-token": token}
        until(lambda: httpx.get(f"{address}api/live", headers=headers).json()["shown"] is not None)
        assert httpx.get(f"{address}api/live").status_code == 403
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_no_proof_outlives_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends while a thread is in the solver is aborted."""
    proving: list[threading.Thread] = []

    def verify_slowly(*given: Any, within: TimeLimit, **more: Any) -> Report:
        proving.append(threading.current_thread())
        until(lambda: within.over)
        return verify_table(*given, within=within, **more)

    monkeypatch.setattr("fsm_agent.debug.live.watched.verify_table", verify_slowly)
    monkeypatch.setattr("fsm_agent.debug.live.watched.REFINE", PATIENCE)
    watched = Watched(committed(tmp_path, SHORT))
    watched.start()
    until(lambda: proving)
    watched.close()
    assert not proving[0].is_alive()


def test_the_prediction_of_a_changed_table_comes_from_recorded_turns(tmp_path: Path) -> None:
    for number in range(8):
        replies = [status(500)] * (number % 3) + [text("4 feet")]
        agent = Agent(ScriptedModel(replies), toolsets=[], home=tmp_path, clock=FakeClock())
        agent.run_conversation("how high is the river?")
        agent.close()
    line = next(one for one in TURN.lines if (one.source, one.event) == ("ClassifyError", "server_error"))
    fewer = replace(line, ladder=line.ladder[1:])
    changed = replace(TURN, lines=tuple(fewer if one is line else one for one in TURN.lines))
    predict = Predictor(str(tmp_path))
    before, now = predict(TURN), predict(changed)
    assert before is not None
    assert now is not None
    requests = [float(one["figures"][0]["value"]) for one in (before, now)]
    assert requests[0] == pytest.approx(15 / 8, abs=0.3)
    assert requests[1] < requests[0] - 0.2, "no retry any more"
    assert Predictor(str(tmp_path / "empty"))(TURN) is None
    assert predict(replace(TURN, name="other")) is None
