"""A program of ``execute_code`` calls the tools of its conversation: by the rules of every call."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.fsm.journal import Exchange
from fsm_agent.sessions.store import Store
from fsm_agent.testing import call, text, tools
from fsm_agent.toolsets.code import CallLine, ProgramDoor
from tests.helpers.processes import ran
from tests.helpers.store_homes import agent
from tests.helpers.waiting import until


@tool(concurrency="parallel", effect="pure")
def weather(city: str) -> dict[str, Any]:
    """The weather of a city."""
    if city == "Nowhere":
        raise LookupError("no such city")
    return {"city": city, "degrees": len(city)}


def program(code: str) -> Any:
    return tools(call("execute_code", {"code": code}))


def coder(script: list[Any], home: Path, approve: Any = lambda asked: True, **options: Any) -> Agent:
    given = {
        "tools": [weather], "toolsets": ["code", "files", "delegate", "clarify"], "workdir": home.parent,
        "callbacks": {"approval": approve}, "settings": {"checkpoints": {"enabled": False}}, **options,
    }  # fmt: skip
    return agent(script, home, **given)


def told(result: Any) -> str:
    """The result of a turn's program, as the model gets it."""
    assert result.completed, result
    [row] = [row for row in result.messages if row["role"] == "tool"]
    return str(row["content"])


def played(code: str, home: Path, **options: Any) -> str:
    one = coder([program(code), text("done")], home, **options)
    try:
        return told(one.run_conversation("go"))
    finally:
        one.close()


def effects(home: Path, kind: str = "RunTool") -> list[str]:
    store = Store(home)
    rows = store.database.select("SELECT name FROM effects WHERE kind = ? ORDER BY seq, ordinal, place", kind)
    store.close()
    return [name for (name,) in rows]


@pytest.mark.behaviour("EXEC-36")
def test_results_are_values_and_each_call_is_in_the_journal(tmp_path: Path) -> None:
    code = """
import tools as same
from tools import weather, ToolError
print(sum(tools.weather(city=name)["degrees"] for name in ("Oslo", "Rome", "Bern")), same is tools)
print(type(tools.list_directory()).__name__)
try:
    weather(city="Nowhere")
except ToolError as error:
    print(error.status, error)
try:
    weather(town="Oslo")
except ToolError as error:
    print(error)
try:
    tools.no_such_tool_at_all()
except ToolError as error:
    print(error)
print(__name__, __file__.endswith("main.py"))
"""
    told: list[str] = []
    answer = played(
        code, tmp_path / "home",
        callbacks={"approval": lambda asked: True, "tool_start": lambda call_id, name, arguments: told.append(name)},
    )  # fmt: skip
    lines = answer.splitlines()
    assert lines[:4] == [
        "exit code 0", "[tools called: weather ×5, list_directory, no_such_tool_at_all]", "12 True", "str",
    ]  # fmt: skip
    assert lines[4].startswith("error LookupError: no such city")
    assert lines[5].startswith("Invalid arguments for weather")
    assert "there is no tool 'no_such_tool_at_all'" in answer
    assert lines[-1] == "__main__ True"
    ran = ["execute_code", *["weather"] * 3, "list_directory", "weather", "weather"]
    assert effects(tmp_path / "home") == told == ran


@pytest.mark.behaviour("EXEC-36")
def test_a_program_gets_no_further_than_a_call_would(tmp_path: Path) -> None:
    asked: list[str] = []

    def approve(question: Any) -> bool:
        asked.append(question.name)
        return question.name == "execute_code"

    code = """
for make in (
    lambda: tools.write_file(path=".envrc", content="x"),
    lambda: tools.read_file(path="/etc/passwd"),
    lambda: tools.delegate_task(goal="x"),
    lambda: tools.execute_code(code="1"),
    lambda: tools.clarify(question="x"),
):
    try:
        print("DONE", make())
    except tools.ToolError as error:
        print(error)
"""
    answer = played(code, tmp_path / "home", approve=approve)
    assert "DONE" not in answer
    assert "denied: " in answer
    assert "outside the working directory" in answer
    for name in ("delegate_task", "execute_code", "clarify"):
        assert f"there is no tool '{name}'" in answer
    assert asked == ["execute_code", "write_file"]
    assert not (tmp_path / ".envrc").exists()
    assert effects(tmp_path / "home") == ["execute_code", "read_file"]


def test_only_so_many_calls(tmp_path: Path) -> None:
    code = """
for number in range(5):
    try:
        print(tools.weather(city="x" * number))
    except tools.ToolError as error:
        print(error)
"""
    answer = played(code, tmp_path / "home", settings={"tool": {"max_calls": 3}})
    assert answer.count("not run: one program may make 3 calls of tools") == 2
    assert effects(tmp_path / "home") == ["execute_code", "weather", "weather", "weather"]


async def test_the_programs_clock_stops_while_a_tool_runs() -> None:
    door = ProgramDoor()
    with CallLine(door) as line:
        _, [number] = line.words("main.py")
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(number)))
        async with asyncio.timeout(60) as clock:
            serving = asyncio.ensure_future(line.serve(clock))
            writer.write(b'{"name": "weather", "arguments": {}}\n')
            assert await door.asked == ("weather", "{}")
            assert clock.when() is None
            door.answer(ToolOutcome("1", "ok", "[1]"))
            assert json.loads(await reader.readline()) == {"status": "ok", "value": [1]}
            assert clock.when() is not None
            writer.close()
            await serving


@pytest.mark.parametrize(
    "code",
    [
        "import os, socket, sys\nsocket.socket(fileno=int(sys.orig_argv[-2])).sendall(b'x' * 3_000_000)",
        "import sys, socket\nline = socket.socket(fileno=int(sys.orig_argv[-2]))\n"
        "for said in (b'[]', b'{}', b'{\"name\": 1}', b'null', b'[' * 9999, b'\\xff', b'{\"name\": \"weather\", \"arguments\": 3}'):\n"
        "    line.sendall(said + b'\\n')\n    print(line.recv(9999))",
        "import os\nif os.fork() == 0:\n    try:\n        tools.weather(city='x')\n    except tools.ToolError as e:\n        print(e)",
        "import sys\nsys.exit(tools.weather(city='abc')['degrees'])",
        "import subprocess\nprint(subprocess.run(['ls', '/proc/self/fd'], capture_output=True).stdout)",
    ],
    ids=["too much", "nonsense", "a fork", "exits", "a child"],
)
def test_whatever_a_program_says_the_turn_goes_on(code: str, tmp_path: Path) -> None:
    answer = played(code, tmp_path / "home")
    assert answer.startswith(("exit code", "killed")), answer


@pytest.mark.slow
def test_nothing_of_the_line_is_left(tmp_path: Path) -> None:
    def sockets() -> int:
        """How many are open in this process."""
        paths = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
        return sum("socket:" in path for path in paths)

    counted = []
    for number in range(3):
        played("print(tools.weather(city='x'))", tmp_path / str(number) / "home", workdir=tmp_path)
        counted.append(sockets())
    assert counted[0] == counted[1] == counted[2]


def test_an_interrupt_ends_the_program_that_waits(tmp_path: Path) -> None:
    stop = tool(concurrency="parallel", effect="pure", name="stop")(lambda: one.interrupt("enough"))
    code = "tools.stop()\nimport time\ntime.sleep(60)"
    one: Agent = coder([program(code)], tmp_path / "home", tools=[stop])
    result = one.run_conversation("go")
    assert (result.interrupted, result.interrupt_message) == (True, "enough")
    one.close()


def left(home: Path, code: str, after: str) -> str:
    """The id of a turn whose process was gone after this request."""

    async def leave() -> str:
        one = coder([program(code)], home, store=store)
        turn = one.start("go")
        asked: Any = None
        while after not in (type(asked).__name__, isinstance(asked, RunTool) and asked.name):
            happened = await turn.step_into()
            asked = happened.requests[0] if isinstance(happened, Exchange) else None
        await one.aclose()
        return turn.id

    store = Store(home)
    turn = asyncio.run(leave())
    store.close()
    gc.collect()
    return turn


SLOW = [pytest.param(after, marks=pytest.mark.slow) for after in ("weather", "execute_code")]


@pytest.mark.parametrize("after", ["AnswerProgram", *SLOW])
def test_a_program_that_died_with_its_process_is_not_run_again(tmp_path: Path, after: str) -> None:
    home, mark = tmp_path / "home", tmp_path / "ran"
    code = f"open({str(mark)!r}, 'a').write('x')\nfor city in 'abc':\n    tools.weather(city=city)"
    turn = left(home, code, after)
    one = coder([text("done")], home)
    assert "the process ended while this program waited" in told(one.resume(turn).run())
    assert mark.read_text() == "x"
    one.close()
    assert effects(home).count("execute_code") == 1
    assert effects(home).count("weather") <= 2


def test_the_line_is_open_in_the_program_alone(tmp_path: Path) -> None:
    child = "subprocess.run(['ls', '-l', '/proc/self/fd'], capture_output=True).stdout"
    answer = played(f"import subprocess\nprint({child})", tmp_path / "home")
    assert "/proc/" in answer
    assert "socket:" not in answer
    own = "[os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')]"
    assert "socket:" in played(f"import os\nprint({own})", tmp_path / "2" / "home", workdir=tmp_path)


def test_a_turn_that_is_given_up_says_what_nobody_knows(tmp_path: Path) -> None:
    home = tmp_path / "home"
    turn = left(home, "for city in 'abc':\n    tools.weather(city=city)", "AnswerProgram")
    one = coder([text("something else")], home, session_id=turn.rpartition("-")[0])
    assert "it may or may not have taken effect" in told(one.run_conversation("never mind"))
    one.close()


KILLED = """
import os, sys
from pathlib import Path
from tests.toolsets.test_programs_call_tools import coder, program
from fsm_agent import tool

@tool(effect="unsafe")
def weather(city: str) -> str:
    "The weather of a city."
    if city == "b":
        os.kill(os.getpid(), 9)
    return city

coder([program(sys.argv[2])], Path(sys.argv[1]), tools=[weather]).chat("go")
"""


@pytest.mark.slow
def test_kill_9_in_a_tool_that_a_program_called(tmp_path: Path) -> None:
    """An unsafe tool: the journal knows for sure that it was begun, and so that the program waited."""
    home, mark = tmp_path / "home", tmp_path / "ran"
    begin = f"import os\nopen({str(mark)!r}, 'a').write(f'{{os.getpid()}} ')\n"
    code = f"{begin}for city in 'abc':\n    tools.weather(city=city)"
    assert ran("-c", KILLED, home, code).returncode == -9
    [pid] = mark.read_text().split()
    until(lambda: not Path(f"/proc/{pid}").exists())
    one = coder([text("done")], home)
    [turn] = one.journal.recent(1)
    assert "the process ended while this program waited" in told(one.resume(turn.id).run())
    one.close()
    assert mark.read_text().split() == [pid]
    assert effects(home) == ["execute_code", "weather", "weather"]
