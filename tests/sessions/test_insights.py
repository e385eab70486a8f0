from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.cli.insights import RECOVERIES, bar
from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.insights import Insights, insights
from fsm_agent.sessions.store.reports import SUMS, UsageTotals
from fsm_agent.testing import FakeClock, ScriptedServer, blank, call, status, text, tools
from fsm_agent_states.table import TURN
from tests.helpers.command_line import Cli
from tests.helpers.store_homes import agent, book, left_unfinished, look, lookup

DAY = 86_400


def served(home: Path, script: list[Any], *asked: str, **options: Any) -> Agent:
    """Turns against a provider over HTTP whose prices are known."""
    with ScriptedServer(script) as server:
        given = {"model": "openai:gpt-5-mini", "tools": [lookup, book], "clock": FakeClock(), **options}
        one = Agent(base_url=server.url, api_key="k", home=home, toolsets=[], **given)
        for words in asked:
            one.run_conversation(words)
        one.close()
    return one


def seen(home: Path, days: float = 30) -> Insights:
    return insights(store_for(str(home)), days, RECOVERIES)


@pytest.mark.behaviour("FIN-09", "USE-04")
def test_everything_a_few_turns_did(home: Path) -> None:
    rounds = tools(
        call("lookup", {"city": "Bern"}), call("lookup", {"city": "Rome"}), call("book", {"city": "Oslo"})
    )
    busy = served(home, [rounds, text("one"), status(500), status(500), text("two")], "first", "second")
    served(home, [blank() for _ in range(9)], "say nothing")
    served(home, [status(401)], "no key")
    left_unfinished(home, [tools(call("book", {"city": "Rome"}))], 3)
    got = seen(home)
    one = got.overview
    assert (one.sessions, one.turns, one.completed) == (4, 5, 2)
    assert (one.failed, one.partial, one.unfinished) == (2, 0, 1)
    assert [(row.exit, row.outcome, row.turns) for row in got.exits] == [
        ("text_response", "completed", 2), ("empty_exhausted", "failed", 1), ("non_retryable_error", "failed", 1),
    ]  # fmt: skip
    moves = {state.state: state.visits for state in got.states}
    assert sum(moves.values()) == one.moves
    assert (moves["Prepare"], moves["ExecuteTools"], moves["ClassifyError"]) == (5, 1, 3)
    assert all(state.longest <= state.seconds for state in got.states)
    taken = {row.row: (row.taken, row.turns) for row in got.recoveries}
    assert taken["ClassifyError.server_error/1"] == (2, 1)
    assert sum(count for name, (count, _) in taken.items() if name.startswith("EmptyRecovery")) == 3
    assert "BuildMessages.built/3" not in taken, "a first request is no recovery"
    assert [(row.name, row.calls, row.failed, row.unknown, row.open) for row in got.tools] == [
        ("lookup", 2, 0, 0, 0),
        ("book", 1, 1, 0, 0),
    ]
    assert all(row.seconds is not None for row in got.tools)
    assert (got.attempts.most, got.attempts.median, got.attempts.mean) == (4, 2, (2 + 3 + 4 + 1) / 4)
    assert [(row.provider, row.model, row.purpose, row.spent.requests) for row in got.models] == [
        ("openai", "gpt-5-mini", "turn", 7), ("scripted", "scripted", "turn", 1),
    ]  # fmt: skip
    assert [row.id for row in got.sessions].index(busy.session_id) == 1, "those with the most tokens first"
    assert sum(row.turns for row in got.sessions) == 5
    assert [(day.turns, day.completed, day.failed, day.requests) for day in got.days] == [(5, 2, 2, 8)]
    spent = sum(row.spent.tokens for row in got.models)
    assert sum(day.tokens for day in got.days) == got.total.tokens == spent
    assert sum(day.seconds for day in got.days) == pytest.approx(got.overview.seconds)
    assert sum(day.cost or 0 for day in got.days) == pytest.approx(got.total.cost)
    assert (len(got.hours), sum(got.hours)) == (24, 5)


def test_days_are_counted_back_from_now(home: Path) -> None:
    one = agent([text("1"), text("2")], home)
    one.chat("old")
    one.chat("new")
    one.close()
    store = store_for(str(home))
    old = "UPDATE turns SET began = began - 864000, ended = ended - 864000 WHERE asked = 'old'"
    store.database.write(lambda c: c.execute(old) and None)
    store.database.write(lambda c: c.execute("UPDATE usage SET at = at - 864000 WHERE id = 1") and None)
    assert (seen(home, 9).overview.turns, seen(home, 9).total.requests) == (1, 1)
    assert (seen(home, 11).overview.turns, seen(home, 11).total.requests) == (2, 2)
    assert len(seen(home, 11).days) == 2
    assert seen(home, 9).overview.moves == 3


@pytest.mark.behaviour("COMP-38")
def test_compactions(home: Path) -> None:
    history = [
        {"role": ("user", "assistant")[n % 2], "content": f"line {n} " + "of a long talk " * 60}
        for n in range(40)
    ]
    one = agent([text("SUMMARY"), text("done")], home, tools=[], context_window=8_192)
    one.run_conversation("go", conversation_history=history)
    one.close()
    got = seen(home)
    assert (got.compactions.count, got.compactions.forced, got.compactions.without_model) == (1, 0, 0)
    assert got.compactions.tokens_before > got.compactions.tokens_after > 0
    assert {row.purpose: row.spent.requests for row in got.models} == {"turn": 1, "summary": 1}
    assert [row.row for row in got.recoveries] == ["BuildMessages.oversized/2", "Compress.unsummarized/1"]


def test_undone_turns_and_forks_are_counted(home: Path) -> None:
    one = agent([text("1"), text("2")], home)
    turn = one.run_conversation("go").turn_id
    one.fork(turn, at=2).run()
    one.undo()
    one.close()
    got = seen(home)
    assert (got.overview.turns, got.overview.forks, got.overview.undone) == (2, 1, 1)
    assert got.overview.moves == 4, "a fork counts with its own moves"


def spent(*rows: tuple[int, float | None, str]) -> UsageTotals:
    """Rows of (input tokens, cost, status)."""
    c = sqlite3.connect(":memory:")
    c.execute(
        "CREATE TABLE usage (id INTEGER PRIMARY KEY, input, output, cache_read, cache_write, reasoning, cost,"
        " cost_status)"
    )
    c.executemany("INSERT INTO usage VALUES (NULL, ?, 1, 3, 0, 0, ?, ?)", rows)
    try:
        return UsageTotals.of(c.execute(f"SELECT {SUMS} FROM usage u").fetchone())
    finally:
        c.close()


@pytest.mark.parametrize(
    ("rows", "cost", "said"),
    [
        ([], None, "none"),
        ([(1, 0.5, "estimated"), (1, 0.25, "estimated")], 0.75, "estimated"),
        ([(1, 0.5, "estimated"), (1, None, "unknown")], 0.5, "at_least"),
        ([(1, None, "unknown"), (1, None, "included")], None, "unknown"),
        ([(1, None, "included")], None, "included"),
        ([(1, None, "included"), (1, 0.5, "estimated")], 0.5, "estimated"),
    ],
)
def test_what_is_unknown_is_never_nothing(rows: list[Any], cost: float | None, said: str) -> None:
    got = spent(*rows)
    assert (got.cost, got.cost_status) == (cost, said)
    assert got.tokens == 5 * len(rows)
    assert got.cache_hit == (0.75 if rows else None)


def test_rows_that_count_as_recoveries() -> None:
    spends = {row.id: set(row.spends) for row in TURN.rows}
    assert {name for name in RECOVERIES if not spends[name]} == set()
    assert "ClassifyError.limited/2" in RECOVERIES
    assert not {name for name in RECOVERIES if spends[name] <= {"iterations", "opened", "sends", "attempts"}}


@pytest.mark.behaviour("USE-04")
def test_the_report(cli: Cli, home: Path) -> None:
    script = [tools(call("lookup", {"city": "Bern"})), text("one"), status(500), text("two")]
    served(home, script, "first \x1b[2J", "second")
    code, out, err = cli("insights", "--days", "7")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "the last 7 days\n  2 turns in 1 session: 2 completed\n" in out
    for line in (
        r"^text_response +completed +2 +█+$",
        r"^CallLLM +4 +[\d.]+ m?s +[\d.]+ m?s +[\d.]+ m?s +█*",
        r"^ClassifyError\.server_error/1 +BuildMessages +1 +1$",
        r"^openai:gpt-5-mini +turn +3 +30 +15 +0% +<\$0\.0001$",
        r"^lookup +1 +0 +0 +[\d.]+ m?s$",
        r"^python +1 +2 +45 +<\$0\.0001$",
    ):
        assert re.search(line, out, re.MULTILINE), line
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, err = cli("insights", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    told = json.loads(out)
    assert (told["days_asked"], told["overview"]["turns"]) == (30, 2)
    assert told["models"][0]["cost_status"] == "estimated"
    assert 0 < told["total"]["cost_usd"] < 0.001
    assert set(told) == {
        "days_asked", "since", "until", "overview", "exits", "states", "recoveries", "compactions", "total", "models", "rows",
        "tools", "sources", "sessions", "days", "hours", "attempts", "improbable",
    }  # fmt: skip


def test_a_provider_that_reports_nothing_costs_an_unknown_sum(cli: Cli, home: Path) -> None:
    assert cli("run", "what is 1+1", "--model", "offline:demo")[0] == 0
    out = cli("insights")[1]
    assert "unknown tokens · cost unknown\n" in out
    assert "no provider reported tokens" in out
    assert cli.json("insights")["total"]["cost_usd"] is None


def test_no_turns_at_all(cli: Cli) -> None:
    code, out, err = cli("insights")
    assert (code, out, err.count("\n")) == (0, "", 1)
    assert "there were no turns in the last 30 days" in err
    out = cli.ok("insights", "--json")
    assert json.loads(out)["overview"]["turns"] == 0
    assert cli("insights", "--days", "0")[0] == 2


def test_a_bar() -> None:
    assert [bar(part, 4).plain for part in (0, 0.01, 0.5, 1, 2)] == ["", "", "██", "████", "████"]
    assert bar(0.53, 4).plain == "██▏"


def test_quantiles_of_attempts(home: Path) -> None:
    for rounds in (0, 0, 0, 4):
        one = agent([*(tools(call("look", {})) for _ in range(rounds)), text("done")], home, tools=[look])
        one.chat("go")
        one.close()
    got = seen(home).attempts
    assert (got.mean, got.median, got.p95, got.most) == (2.0, 1, 5, 5)


def change(home: Path, *statements: str) -> None:
    store_for(str(home)).database.write(lambda c: [c.execute(one) for one in statements] and None)


def test_time_of_people_and_of_later_results_is_apart(home: Path, cli: Cli) -> None:
    """A turn of 1,000 seconds: 200 at work, 40 for an answer in its state, 500 suspended for two questions that
    were asked at once, 100 for a time, and 160 in which nothing ran it."""
    one = agent([tools(call("book", {"city": "Rome"})), text("done")], home)
    one.chat("go")
    one.close()
    copied = "turn, seq, 99, 0, state, 'AskApproval', name, class, key, status, request, request_crc, NULL, NULL, at, 40.0, ''"
    asked = "(id, turn, seq, call, kind, tool, asked, choices, digest, since, answered, due)"
    change(
        home,
        "UPDATE turns SET began = ended - 1000.0",
        "UPDATE transitions SET seconds = CASE source WHEN 'ExecuteTools' THEN 60.0 WHEN 'CallLLM' THEN 90.0 ELSE 0.0 END",
        f"INSERT INTO effects SELECT {copied} FROM effects WHERE kind = 'RunTool'",
        f"INSERT INTO pending {asked} SELECT 'p1', id, 3, 'a', 'approval', 't', '', '[]', '', 100.0, 400.0, NULL FROM turns",
        f"INSERT INTO pending {asked} SELECT 'p2', id, 3, 'b', 'question', 't', '', '[]', '', 100.0, 600.0, NULL FROM turns",
        f"INSERT INTO pending {asked} SELECT 'p3', id, 4, 'c', 'timer', 't', '', '[]', '', 100.0, NULL, 200.0 FROM turns",
    )
    got = seen(home).overview
    assert (got.seconds, got.work, got.people, got.later, got.idle) == pytest.approx(
        (1000, 200, 540, 100, 160)
    )
    states = {state.state: (state.seconds, state.longest, state.people) for state in seen(home).states}
    assert states["ExecuteTools"] == (20, 20, 40)
    assert states["CallLLM"] == (180, 90, 0)
    shown = " ".join(cli.ok("insights").split())
    assert "moves in 3 min 20 s · requests a turn" in shown
    assert (
        "besides waiting: 9 min 0 s for people, 100.0 s for results and times, 2 min 40 s paused or stopped"
        in shown
    )
    assert cli.json("insights")["overview"]["idle"] == pytest.approx(160)


def test_the_cost_of_a_request_is_that_of_the_row_that_ended_its_visit(home: Path) -> None:
    one = agent([blank(), tools(call("look", {})), text("done")], home, tools=[look], clock=None)
    one.chat("go")
    one.close()
    change(home, "UPDATE usage SET cost = input * 0.5, cost_status = 'estimated'")
    found = {row.row: (row.spent.requests, row.spent.cost) for row in seen(home).rows}
    assert found == {"CallLLM.blank": (1, 5.0), "CallLLM.tools": (1, 5.0), "CallLLM.text": (1, 5.0)}


def test_days_are_a_trend(home: Path) -> None:
    one = agent([text("1"), *([blank()] * 9)], home)
    one.chat("fine")
    one.run_conversation("say nothing")
    one.close()
    change(
        home,
        "UPDATE usage SET cost = 0.25",
        "UPDATE turns SET began = began - 86400 * 2, ended = ended - 86400 * 2 WHERE asked = 'fine'",
        "UPDATE usage SET at = at - 86400 * 2 WHERE id = 1",
    )
    old, new = seen(home).days
    assert (old.turns, old.completed, old.failed, old.requests, old.cost) == (1, 1, 0, 1, 0.25)
    assert (new.turns, new.completed, new.failed) == (1, 0, 1)
    assert new.requests == new.cost / 0.25 > 1


def test_a_turn_that_takes_an_unlikely_way_is_named_with_its_row(home: Path, cli: Cli) -> None:
    one = agent([*(text("fine") for _ in range(30)), status(401)], home)
    for _ in range(30):
        one.chat("go")
    odd = one.run_conversation("again").turn_id
    one.close()
    [found] = cli.json("insights")["improbable"]
    assert (found["turn"], found["row"]) == (odd, "CallLLM.error")
    assert found["probability"] == pytest.approx(1 / 31)
    assert re.search(rf"^{odd} +CallLLM\.error +1 in 31 +\d\.\d$", cli.ok("insights"), re.MULTILINE)


def test_a_few_turns_are_not_called_improbable(home: Path, cli: Cli) -> None:
    one = agent([text("fine"), text("fine"), status(401)], home)
    for _ in range(3):
        one.run_conversation("go")
    one.close()
    assert cli.json("insights")["improbable"] == []
    assert "improbable" not in cli.ok("insights")
