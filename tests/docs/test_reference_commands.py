"""The commands that the guides list are run, one by one, in a home that has what they name."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import order
from fsm_agent import Agent, ResultLater, TurnSuspended, tool
from fsm_agent.cli import main
from fsm_agent.testing import ScriptedServer, repeat
from tests.docs.test_pages import shown_commands, wrong
from tests.helpers.page_blocks import ROOT, environment, provider

PAGES = (
    "README.md", "examples/README.md", "docs/budgets.md", "docs/configuration.md", "docs/diagrams.md",
    "docs/output.md", "docs/people.md", "docs/sessions.md", "docs/testing.md", "docs/tools.md",
    "docs/verify.md",
)  # fmt: skip
NOT_HERE = {
    "acp": "it serves an editor: tests/acp",
    "debug": "it serves a page: tests/debug, tests/browser",
    "worker": "it runs until it is stopped: tests/dispatch",
    "serve": "so does this: tests/serve",
    "mcp": "it serves a client, or logs in at a server: tests/serve, tests/toolsets",
    "diagram --live": "it serves a page: tests/browser",
    "--breaks": "it needs a turn that breaks a property: tests/backtest/test_shrinking.py",
    "chat": "it talks with a person: tests/cli",
    "simulate": "tests/cli/test_simulate.py",
}
DIES = """
import asyncio, os
from fsm_agent import Agent

turn = Agent("offline:demo", session_id="left").start("what is 1+1?")
asyncio.run(turn.step())
os._exit(0)
"""


@tool(approval="ask")
def pay(invoice: int) -> str:
    """Pay an invoice."""
    return f"paid {invoice}"


@tool
def deliver(item: str) -> str:
    """Have something delivered, which takes days."""
    raise ResultLater("the parcel is on its way")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A repository with a package, a home with sessions, turns that wait and one that was left unfinished. What
    the pages call a session, a turn or a thing that is waited for, by what it is called here."""
    work = tmp_path_factory.mktemp("place") / "work"
    with pytest.MonkeyPatch.context() as patch, ScriptedServer(repeat(provider)) as server:
        for name, value in environment(server.url, work.parent / "home").items():
            patch.setenv(name, value)
        patch.delenv("FSM_AGENT_HOME", raising=False)
        a_repository(work)
        patch.chdir(work)
        patch.syspath_prepend(str(work))
        yield sessions_in(work)


def a_repository(work: Path) -> None:
    """Two commits, files that commands read, and a table under the names that the pages use."""
    (work / "mypackage").mkdir(parents=True)
    for folder in ("examples", "states"):
        shutil.copytree(ROOT / folder, work / folder)
    source = (ROOT / "examples" / "review_loop.py").read_text(encoding="utf-8")
    table = source + "\nREVIEW = TABLE\n"
    for name in ("mypackage/table.py", "old.py", "new.py", "examples/table.py"):
        (work / name).write_text(table, encoding="utf-8")
    (work / "mypackage" / "__init__.py").write_text("")
    (work / "city.json").write_text(
        '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
    )
    (work / "delivery.txt").write_text("it is there")
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-qm", "one"],
        *[["commit", "-q", "--allow-empty", "-m", str(number)] for number in range(3)],
    ):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words], cwd=work, check=True
        )


def sessions_in(work: Path) -> dict[str, str]:
    order.workflow(work / "shop").start(order.Order(["LAMP"])).run()
    agent = Agent(
        "offline:demo", session_id="s-4f1c", toolsets=["core", "files"],
        settings={"approval": {"allow": ["write_file"]}},
    )  # fmt: skip
    writes = 'write_file(path="notes.txt", content="a deadlock")'
    for message in ("fix the tests", writes, "List the files here, then read notes.txt and say what 6*7 is"):
        turn = agent.start(message)
        turn.run()
    asks = Agent(
        "offline:demo", tools=[pay, deliver], toolsets=[], settings={"approval": {"unanswered": "suspend"}}
    )
    items = []
    for message in ("pay(7)", 'deliver("lamp")'):
        with pytest.raises(TurnSuspended) as waits:
            Agent.of(asks.options).chat(message)
        items.append(waits.value.pending[0].id)
    subprocess.run([sys.executable, "-c", DIES], check=True)
    main(["sessions", "export", turn.id, "-o", str(work / "turn.jsonl")])
    shutil.copyfile(work / "turn.jsonl", work / "a.jsonl")
    for name in ("b.json", "rows.json"):
        (work / name).write_text('{"table": "turn", "rows": {"CallLLM.tools": 41}}')
    with (work / "table.json").open("w") as file, contextlib.redirect_stdout(file):
        main(["diagram", "examples.review_loop:TABLE", "--format", "json"])
    return {
        "s-4f1c…": turn.id, "TURN": turn.id, "s-3f2a": "s-4f1c", "s-3f2a-793b": turn.id, "p-841ec47508": items[0],
        "p-2fe9218935": items[1], "@delivery.txt": "@delivery.txt",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_run(
    page: str, place: dict[str, str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FSM_AGENT_HOME")
    monkeypatch.setattr("sys.stdin", io.StringIO("what do these lines do?"))
    run = 0
    for where, words in shown_commands():
        names = {words[0], " ".join(words[:2]), *(word for word in words if word.startswith("--"))}
        if not where.startswith(f"{page}:") or names & NOT_HERE.keys():
            continue
        words = [place.get(word, word) for word in words]
        words += [f"of-{Path(page).stem}"] * (words == ["examples"])  # here they are already
        code = main([*words, "--time", "1"] if words[0] == "verify" else words)
        said = capfd.readouterr()
        assert code == 0, f"{where}\n{words}\n{said.err[-800:]}{said.out[-400:]}"
        assert not wrong(words)
        run += 1
    assert run
