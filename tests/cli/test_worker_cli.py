"""``fsm-agent worker`` and ``--remote``: bad arguments get one line, and a turn is shown while it runs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from fsm_agent.dispatch.dispatcher import InProcess, submit
from fsm_agent.dispatch.follow import Follower
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.queued import to_be_run
from fsm_agent.support.installation import install_command
from tests.dispatch.app import lines
from tests.dispatch.crew import Quiet, WorkerProcess
from tests.helpers.command_line import Cli
from tests.helpers.waiting import until

APP = "tests.dispatch.app:make_agent"


def test_a_missing_extra_is_reported(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "temporalio", None)
    for name in [name for name in sys.modules if name.startswith("fsm_agent.dispatch.temporal")]:
        monkeypatch.delitem(sys.modules, name)
    said = cli.refused("run", "hi", "--remote", "--set", "dispatch.temporal=127.0.0.1:7233")
    assert install_command("temporal") in said


@pytest.mark.slow
def test_an_address_without_an_answer_fails_with_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("temporalio")
    for arguments in (("worker", "--app", APP, "--temporal", "127.0.0.1:9"), ("run", "hi", "--remote")):
        monkeypatch.setenv("FSM_AGENT_DISPATCH__TEMPORAL", "127.0.0.1:9")
        said = cli.refused(*arguments)
        assert "no Temporal server answers" in said.splitlines()[-1]
    assert to_be_run(Store(Path(os.environ["FSM_AGENT_HOME"])), time.time() + 1) == [], "nothing was queued"
    _, out, _ = cli("doctor")
    assert "dispatcher" in out
    assert "correct dispatch.temporal, or start the server" in out


@pytest.mark.slow
def test_two_workers_of_one_home_run_what_others_queue(cli: Cli, tmp_path: Path) -> None:
    home = tmp_path / "home"
    crew = [WorkerProcess(tmp_path, home, slow=0.0).serves() for _ in range(2)]
    try:
        code, out, said = cli("run", "hello", "--remote", "--json", "--home", str(home))
        result = json.loads(out)
        assert (code, result["final_response"]) == (0, "answer to hello"), said
        session = result["session_id"]
        code, out, said = cli(
            "run", "again", "--remote", "--verbose", "--home", str(home), "--session", session
        )
        assert (code, out) == (0, "answer to again\n")
        assert "ExecuteTools" in said
        assert "put again" in said
        assert [one.leave() for one in crew] == [0, 0], crew[0].said

        crew = [WorkerProcess(tmp_path, home, slow=-600).serves()]
        store, taken = Store(home), lambda: len(lines(tmp_path, "puts")) == 3
        order = asyncio.run(submit(store, InProcess(), "third", session))
        until(taken, "the tool")
        crew.append(WorkerProcess(tmp_path, home, slow=0.0).serves())
        crew[0].kill()
        result = asyncio.run(Follower(store, Quiet()).follow(order.turn))
        assert result.completed
        assert len(lines(tmp_path, "puts")) == 3, "a call with an unknown outcome is not repeated"
    finally:
        for one in crew:
            one.end()
