"""What suspended turns wait for, on the command line."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import ResultLater, TurnSuspended, WakeAt, tool
from fsm_agent.testing import ScriptedServer, call, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.store_homes import agent
from tests.helpers.waiting import until

SUSPEND = ("--set", "approval.unanswered=suspend")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    asks = tools(call("clarify", {"question": "Which\x1b[2J one?", "choices": ["red", "blue"]}))
    with ScriptedServer([asks, text("blue it is")]) as running:
        yield running


def options(server: ScriptedServer) -> tuple[str, ...]:
    return ("--model", "local:m", "--base-url", server.url)


def suspended(home: Path, made: Any, *own: Any) -> Any:
    """What a turn waits for that makes this call."""
    with pytest.raises(TurnSuspended) as caught:
        agent([tools(made)], home, tools=own, clock=None, session_id="s").chat("please")
    return caught.value.pending[0]


def test_a_question_is_answered_in_another_process(cli: Cli, server: ScriptedServer) -> None:
    code, out, err = cli("run", "paint it", *options(server), *SUSPEND)
    assert (code, out) == (4, "")
    [line] = [line for line in err.splitlines() if "suspended" in line]
    item = re.findall(r"p-\w{10}", line)[0]
    assert f"fsm-agent pending show {item}, pending answer {item} WORDS, then fsm-agent pending run" in line
    assert cli("sessions", "list")[1].count("suspended") == 1
    assert f"waits for {item}: an answer" in cli("sessions", "show", "paint")[1]
    assert re.search(rf"^{item}  .*an answer  \(turn ", cli("pending", "list")[1])
    shown = cli("pending", "show", item[:6])[1]
    assert "\x1b" not in shown
    assert [line.strip() for line in shown.splitlines() if line.startswith("    ")] == ["1 red", "2 blue"]
    assert cli("pending", "run", *options(server))[:2] == (
        0,
        "No turn can continue: none was suspended, or all are still waiting.\n",
    )
    assert cli("pending", "answer", item, "2")[0] == 0
    code, _, err = cli("pending", "answer", item, "1")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(rf"{item} was answered already; given: blue, by .* at \d", err)
    out = cli.ok("pending", "run", *options(server))
    assert "blue it is" in out
    assert cli("pending", "list")[1] == "No turn waits for an answer.\n"


def test_as_json(cli: Cli, server: ScriptedServer) -> None:
    code, out, err = cli("run", "paint it", "--json", *options(server), *SUSPEND)
    told = json.loads(out)
    assert (code, err, told["suspended"]) == (4, "", True)
    [item] = told["pending"]
    assert cli.json("pending", "list") == [item]
    assert cli.json("pending", "show", item["id"])["asked"].startswith("Which")
    [session] = cli.json("sessions", "list")
    assert session["pending"] == [item]
    cli("pending", "answer", item["id"], "green")
    assert cli.json("pending", "run", *options(server))["final_response"] == "blue it is"


@tool
def order(what: str) -> str:
    """Order something."""
    raise ResultLater(f"the warehouse: {what}")


@tool
def nap(seconds: float) -> str:
    """Sleep."""
    raise WakeAt(time.time() + seconds)


def test_a_result_comes_from_a_file(cli: Cli, home: Path, tmp_path: Path) -> None:
    item = suspended(home, call("order", {"what": "chairs"}), order)
    file = tmp_path / "delivery.txt"
    file.write_text("four chairs")
    assert cli("pending", "answer", item.id, "--result", f"@{file}")[0] == 0
    turn = agent([text("done")], home, tools=[order]).resume(item.turn)
    assert [row["content"] for row in turn.run().messages if row["role"] == "tool"] == ["four chairs"]


def test_a_time_that_has_come_lets_its_turn_go_on(cli: Cli, home: Path) -> None:
    item = suspended(home, call("nap", {"seconds": 0.2}), nap)
    with ScriptedServer([text("rested")]) as server:
        until(lambda: time.time() > item.due, "its time")
        code, out, _ = cli("pending", "run", *options(server))
    assert code == 0
    assert "rested" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "p-none"], "nothing of this id waits; given: p-none; allowed: "),
        (["answer", "{}"], "the answer is missing; allowed: --result TEXT|@FILE"),
        (["answer", "{}", "x", "--result", "y"], "there are two answers"),
        (["answer", "{}", "--result", "@/nowhere"], "the result cannot be read"),
        (["answer", "{}", "x", "--pattern", "order"], "only an approval has a pattern"),
    ],
)
def test_wrong_use_is_one_line(cli: Cli, home: Path, arguments: list[str], says: str) -> None:
    item = suspended(home, call("order", {"what": "chairs"}), order)
    code, out, err = cli("pending", *(one.format(item.id) for one in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
