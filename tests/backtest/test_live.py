"""Recorded turns continued by a model: real requests over HTTP, counted at the server, in a copy of the home."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.backtest import Backtest, Change
from fsm_agent.backtest.live import Fork, Live, places, scratch
from fsm_agent.conversation.messages import Usage
from fsm_agent.errors import ConfigError
from fsm_agent.features.limits import UnknownPrice
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.schema import tables as stored_tables
from fsm_agent.support.threads import LOOP
from fsm_agent.testing import FakeClock, ScriptedModel, ScriptedServer, call, repeat, status, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.recorded_turns import record as record_many

RAN: list[str] = []
TABLES = [one for one in stored_tables() if one != "marks"]
SLOW = pytest.mark.slow
PRICES = {"local:any": {"input": 1, "output": 100}, "local:other": {"input": 1, "output": 100}}
SETTINGS = {
    "prices": PRICES, "max_output_tokens": 500, "backoff": {"exception": {"base": 0.001, "cap": 0.001}},
}  # fmt: skip


@tool(effect="pure")
def measure(place: str) -> str:
    """The height of the river."""
    RAN.append(f"measure {place}")
    return f"{place}: 4 feet"


@tool
def close(bridge: str) -> str:
    """Close a bridge."""
    RAN.append(f"close {bridge}")
    return f"{bridge} is closed"


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    RAN.clear()
    yield
    RAN.clear()


def record(home: Path, *replies: Any, **more: Any) -> str:
    """The id of a turn of the model ``any``."""
    with ScriptedServer(replies) as server:
        settings = {**SETTINGS, **more}
        with Agent(
            "local:any",
            base_url=server.url,
            tools=[measure, close],
            toolsets=[],
            home=home,
            clock=FakeClock(),
            settings=settings,
        ) as one:
            return one.run_conversation("How high is the river?").turn_id


def live(
    home: Path, server: ScriptedServer, change: Change | None = None, where: str | None = None, **more: Any
) -> tuple[list[Fork], float]:
    change, store = change or Change(), Store(home)
    found = Backtest.of(store).run(change)
    begin = places(store, found.verdicts, change, where)
    options = {"model": more.pop("model", "local:any"), "base_url": server.url, "clock": FakeClock()}
    change = Change({**change.settings, "prices": PRICES}, change.prompt, change.tools)
    with scratch(store) as copy:
        running = Live(copy, change, lambda name: options, more.pop("usd", 1.0), **more)
        return LOOP.run(running.run(begin)), running.spent


def contents(home: Path) -> list[str]:
    """Every row of the database, and every other file; without how far the search index has come, and without
    the lock of the process that recorded, which is released when that is collected."""
    with closing(sqlite3.connect(home / "sessions.db")) as database:
        rows = [f"{one} {row}" for one in TABLES for row in database.execute(f"SELECT * FROM {one}")]
    own = ("sessions.db", "owners")
    files = (str(one.relative_to(home)) for one in home.rglob("*"))
    return [*rows, *sorted(one for one in files if not one.startswith(own))]


RIVER = (tools(call("measure", {"place": "mill"})), text("It is 4 feet."))


def test_a_model_continues_where_the_recording_ends(tmp_path: Path) -> None:
    """With one retry left, the second failure ends the turn in the recording; with more, it asks again."""
    turn = record(tmp_path, status(500), status(500), text("It is 4 feet."), api_max_retries=2)
    RAN.clear()
    before = contents(tmp_path)
    with ScriptedServer([text("Four feet.")]) as server:
        (fork,), _ = live(tmp_path, server, Change({"api_max_retries": 3}))
        assert (fork.place.turn, fork.kind) == (turn, "otherwise")
        assert fork.recorded.exit == "api_retries_exhausted"
        assert (fork.now.exit, fork.now.answer, fork.now.requests) == ("text_response", "Four feet.", 1)
        assert server.completions == 1, "what was recorded is not asked again"
    assert contents(tmp_path) == before


def test_another_model_answers_at_a_chosen_move(tmp_path: Path) -> None:
    """Its call is the recorded one, so the tool does not run again; its answer is another."""
    turn = record(tmp_path, *RIVER)
    RAN.clear()
    before = contents(tmp_path)
    replies = [tools(call("measure", {"place": "mill"}, id="x9")), text("Four feet.", usage=Usage(1000, 10))]
    with ScriptedServer(replies) as server:
        (fork,), spent = live(tmp_path, server, where="CallLLM", model="local:other")
        assert (fork.place.turn, fork.place.state, fork.kind, fork.model) == (
            turn, "CallLLM", "alike", "local:other",
        )  # fmt: skip
        assert (fork.now.answer, fork.now.tools, fork.now.requests) == ("Four feet.", ("measure",), 2)
        assert (fork.recorded.answer, fork.recorded.tools, fork.recorded.requests) == (
            "It is 4 feet.", ("measure",), 2,
        )  # fmt: skip
        assert {body["model"] for body in server.bodies} == {"other"}
        assert [row["content"] for row in server.bodies[1]["messages"] if row["role"] == "tool"] == [
            "mill: 4 feet"
        ]
        assert fork.usd == spent > 0.001
    assert (RAN, contents(tmp_path)) == ([], before)


def test_the_second_visit_of_a_state_keeps_what_was_before(tmp_path: Path) -> None:
    record(tmp_path, *RIVER)
    with ScriptedServer([text("Four.")]) as server:
        (fork,), _ = live(tmp_path, server, where="CallLLM:2")
        assert (server.completions, fork.kind, fork.now.tools) == (1, "alike", ())
        assert live(tmp_path, server, where="CallLLM:3")[0] == []


def test_a_call_that_was_not_recorded_ends_the_fork_before_it(tmp_path: Path) -> None:
    record(tmp_path, tools(call("close", {"bridge": "mill"})), text("It is closed."))
    RAN.clear()
    replies = [
        tools(call("close", {"bridge": "mill"}), call("close", {"bridge": "north"}, id="2")),
        text("no"),
    ]
    with ScriptedServer(replies) as server:
        (fork,), _ = live(tmp_path, server, where="CallLLM")
        assert fork.kind == "stopped"
        assert fork.why == "close (unsafe) with arguments that were not recorded"
        assert server.completions == 1, "the model is not asked again"
    assert RAN == []


def test_a_result_that_is_not_repeatable_is_used_once(tmp_path: Path) -> None:
    record(tmp_path, tools(call("close", {"bridge": "mill"})), text("It is closed."))
    RAN.clear()
    replies = [tools(call("close", {"bridge": "mill"}, id=one)) for one in "ab"]
    with ScriptedServer([*replies, text("no")]) as server:
        (fork,), _ = live(tmp_path, server, where="CallLLM")
        assert (fork.kind, server.completions, RAN) == ("stopped", 2, [])


def test_a_pure_tool_runs_if_it_is_named(tmp_path: Path) -> None:
    record(tmp_path, *RIVER)
    RAN.clear()
    asks = tools(call("measure", {"place": "weir"}))
    with ScriptedServer([asks, text("4.")]) as server:
        assert live(tmp_path, server, where="CallLLM")[0][0].kind == "stopped"
        assert RAN == []
    with ScriptedServer([asks, text("4.")]) as server:
        (fork,), _ = live(tmp_path, server, where="CallLLM", tools=[measure])
        assert (fork.kind, fork.now.answer, RAN) == ("alike", "4.", ["measure weir"])
    with pytest.raises(ConfigError, match="a fork runs pure tools only; given: close: unsafe"):
        live(tmp_path, server, where="CallLLM", tools=[close])


def test_a_changed_prompt_and_schema_reach_the_model(tmp_path: Path) -> None:
    record(tmp_path, tools(call("close", {"bridge": "mill"})), *RIVER)
    change = Change(prompt="Be brief.", tools={"close": None, "measure": {"description": "In feet."}})
    with ScriptedServer([text("4.")]) as server:
        (fork,), _ = live(tmp_path, server, change, where="CallLLM")
        body = server.bodies[0]
    assert fork.kind == "otherwise"
    assert body["messages"][0]["content"] == "Be brief."
    assert [(one["function"]["name"], one["function"]["description"]) for one in body["tools"]] == [
        ("measure", "In feet.")
    ]


def test_the_budget_ends_a_fork_and_the_ones_behind_it(tmp_path: Path) -> None:
    for _ in range(3):
        record(tmp_path, *RIVER)
    RAN.clear()

    def longest(received: Any) -> Any:
        """As long a reply as it may be."""
        most = received.body.get("max_completion_tokens") or received.body["max_tokens"]
        return text("4.", usage=Usage(100, most))

    with ScriptedServer(repeat(longest)) as server:
        forks, spent = live(tmp_path, server, where="CallLLM", usd=0.06)
        assert [one.kind for one in forks][-1] == "budget"
        assert forks[-1].why in ("not begun", "ended by the budget")
        assert spent <= 0.06
        assert server.completions < 4


def test_a_tool_can_be_taken_away_where_its_result_is_recorded(tmp_path: Path) -> None:
    """The fork begins before the first move that differs: the call of the tool that is gone."""
    record(tmp_path, *RIVER)
    with ScriptedServer([text("I cannot measure.")]) as server:
        (fork,), _ = live(tmp_path, server, Change(tools={"measure": None}))
        assert (fork.place.state, fork.kind, fork.now.answer) == (
            "ExecuteTools", "otherwise", "I cannot measure.",
        )  # fmt: skip
        assert server.completions == 1
        assert "measure" not in [one["function"]["name"] for one in server.bodies[0]["tools"]]


@pytest.mark.parametrize("where", ["Nowhere", "CallLLM:0", "CallLLM:x", "Finalize", "-1"])
def test_a_place_that_is_none_is_one_line(tmp_path: Path, where: str) -> None:
    record(tmp_path, *RIVER)
    with pytest.raises(ConfigError, match="--at names no place in a turn"):
        live(tmp_path, ScriptedServer(), where=where)


def test_a_model_without_a_price_is_refused(tmp_path: Path) -> None:
    record(tmp_path, *RIVER)
    with ScriptedServer() as server, pytest.raises(UnknownPrice, match="the price of every model"):
        live(tmp_path, server, where="CallLLM", model="openrouter:x/unknown")


# On the command line


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose config file knows the prices, and a folder with a module of tools."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    lines = [f'[settings.prices."local:{name}"]\ninput = 1\noutput = 100\n' for name in ("any", "other")]
    (home / "config.toml").write_text("\n".join(lines))
    return home


def test_what_it_costs_at_most_is_asked_before_anything_is_sent(config: Path, cli: Cli) -> None:
    record(config, *RIVER)
    RAN.clear()
    before = contents(config)
    with ScriptedServer([text("4 feet.", usage=Usage(1000, 10))] * 2) as server:
        model = ("--model", "local:other", "--base-url", server.url, "--set", "max_output_tokens=100")
        words = ("backtest", "--home", str(config), "--live", "--budget", "0.5", *model)
        code, out, err = cli(*words)
        assert (code, out, server.completions) == (2, "", 0)
        assert "Live: 1 fork with local:other, each of at most" in err
        assert "the budget ends it at $0.5000." in err
        assert err.endswith(
            "fsm-agent: no person can be asked whether to begin; given: 1 fork; allowed: --yes\n"
        )
        code, out, err = cli(*words, "--yes", "--markdown", "report.md", "--html", "report.html")
        assert (code, server.completions) == (0, 1)
        assert "Live: 1 fork, $0.0020 of $0.5000" in out
        assert "text_response: 4 feet." in out
        assert "#### Live: 1 fork, $0.0020 of $0.5000" in Path("report.md").read_text()
        page = Path("report.html").read_text()
        assert "<h2>Live: 1 fork, $0.0020 of $0.5000</h2>" in page
        assert page.count("<section><b>recorded</b>") == page.count("<section><b>now</b>") == 1
        assert "4 feet." in page
        (fork,) = json.loads(cli(*words, "--yes", "--json")[1])["live"]["forks"]
        assert (fork["kind"], fork["now"]["answer"], fork["model"]) == ("otherwise", "4 feet.", "local:other")
    assert (RAN, contents(config)) == ([], before)


@SLOW
def test_the_most_that_it_costs_is_the_proved_bound_times_the_price(
    config: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(config, *RIVER)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    change = ("--set", "api_max_retries=1", "--set", "max_output_tokens=100")
    words = ("backtest", "--home", str(config), "--live", "--budget", "1", "--model", "openai:gpt-5-mini")
    err = cli(*words, *change)[2]
    proved = cli.json("verify", "--model", "openai:gpt-5-mini", *change)
    most = proved["requests"]["turn"] * proved["money"]["models"]["openai:gpt-5-mini"]
    assert (
        f"each of at most {proved['requests']['turn']} requests. Their cost is at most ${most:,.2f};" in err
    )


def test_forks_are_kept_if_that_is_asked_for(config: Path, cli: Cli) -> None:
    record(config, *RIVER)
    with ScriptedServer([text("4 feet.")]) as server:
        words = ("backtest", "--home", str(config), "--live", "--budget", "1", "--yes", "--keep", "copy")
        code, _, _ = cli(
            *words, "--at", "CallLLM:2", "--base-url", server.url, "--set", "max_output_tokens=100"
        )
        assert (code, server.completions) == (0, 1)
        assert "forks are kept in an empty folder; given: copy" in cli.refused(*words, "--at", "CallLLM")
    assert len(Turns(Store(Path("copy")).database).recent()) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--live",), "--live asks a model and needs a budget; allowed: --budget USD"),
        (("--at", "CallLLM"), "an option is for live backtests only; given: --at; allowed: --live --at"),
        (("--yes",), "an option is for live backtests only; given: --yes"),
        (("--live", "--budget", "1", "--table", "HEAD"),
         "of this version; given: --table; allowed: no --table"),
        (("--live", "--budget", "1", "x.jsonl"), "of this version; given: FILE; allowed: no FILE"),
        (("--live", "--budget", "0", "--at", "1"), "a budget is out of range; given: 0"),
        (("--live", "--budget", "1", "--at", "Call"), "--at names no place in a turn; given: Call"),
        (("--live", "--budget", "1", "--at", "1", "--tool", "nowhere:x"), "the tool cannot be loaded"),
        (("--live", "--budget", "1", "--at", "1", "--tool", "textwrap:dedent"),
         "a fork runs pure tools only"),
    ],
)  # fmt: skip
def test_bad_input_of_a_live_backtest_is_one_line(
    config: Path, cli: Cli, words: tuple[str, ...], line: str
) -> None:
    record(config, *RIVER)
    err = cli.refused("backtest", "--home", str(config), *words)
    assert line in err
    assert err.count("\n") == 1


# Forks and verdicts agree


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("corpus")
    record_many(home, 80, 3)
    return home


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Change({"max_iterations": 3}), marks=SLOW),
        pytest.param(Change({"empty": {"retries": 0, "nudges": 0}}), marks=SLOW),
        pytest.param(Change({"length": {"max_continuations": 0}}), marks=SLOW),
        pytest.param(Change({"invalid_tool_strikes": 1}), marks=SLOW),
        pytest.param(Change(tools={"close": None}), marks=SLOW),
    ],
    ids=["iterations", "empties", "continuations", "strikes", "a tool"],
)
def test_a_fork_takes_the_move_that_the_backtest_found(corpus: Path, change: Change) -> None:
    """Turns of many kinds: the first move of each fork that is not the recorded one is the move of its verdict,
    by the same row."""
    store = Store(corpus)
    verdicts = Backtest.of(store).run(change).of("differs")
    assert len(verdicts) > 3
    with scratch(store) as copy:
        running = Live(
            copy,
            change,
            lambda place: {"model": ScriptedModel([repeat(text("ok"))]), "clock": FakeClock()},
            1.0,
        )
        forks = LOOP.run(running.run(places(store, verdicts, change)))
        found = [(one.place.turn, one.first, one.kind) for one in forks]
        assert found == [(one.turn, one.at, "otherwise") for one in verdicts]
        read = Turns(copy.database)
        rows = {info.parent: read.steps(info.id) for info in read.recent(1_000) if info.forked_at is not None}
        assert [rows[one.turn][one.at - 1].row for one in verdicts] == [one.now.row for one in verdicts]


def test_a_fork_from_the_beginning_has_the_changed_prompt(tmp_path: Path) -> None:
    record(tmp_path, *RIVER)
    for change, said in (
        (Change(prompt="Be brief."), "Be brief."),
        (Change(), "You are a capable assistant."),
    ):
        with ScriptedServer([text("4.")]) as server:
            (fork,), _ = live(tmp_path, server, change, where="0")
            assert (fork.place.state, fork.kind) == ("Prepare", "otherwise")
            assert server.bodies[0]["messages"][0]["content"].startswith(said)
            assert [row["role"] for row in server.bodies[0]["messages"]] == ["system", "user"]


class Terminal(io.StringIO):
    """A person at a terminal who answers."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("says", "code", "asked"), [("y\n", 0, 1), ("n\n", 2, 0), ("\n", 2, 0), ("", 2, 0)])
def test_a_person_at_a_terminal_is_asked(
    config: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, says: str, code: int, asked: int
) -> None:
    record(config, *RIVER)
    with ScriptedServer([text("4 feet.")]) as server, monkeypatch.context() as terminal:
        terminal.setattr("sys.stdin", Terminal(says))
        words = ("--at", "CallLLM:2", "--base-url", server.url, "--set", "max_output_tokens=100")
        found, out, err = cli("backtest", "--home", str(config), "--live", "--budget", "1", *words)
        assert (found, server.completions) == (code, asked)
    assert "Begin? [y/N] " in err
    assert ("no model was asked; given: no; allowed: y or yes" in err) is (code == 2)
    assert ("Live: 1 fork" in out) is (code == 0)


def test_a_model_that_is_not_paid_for_costs_nothing(tmp_path: Path, cli: Cli) -> None:
    record(tmp_path, *RIVER)
    words = ("backtest", "--home", str(tmp_path), "--live", "--budget", "1", "--model", "offline:demo")
    assert "Their cost is at most $0.0000;" in cli(*words)[2]
