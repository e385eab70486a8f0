"""Recorded turns that failed, shrunk to the replies that their end needs."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.backtest.replay import Replay, breaks, make_test, recording_of, shrunk
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.properties import enters, event, never
from fsm_agent.sessions.store import Store
from fsm_agent.testing import (
    FakeClock,
    ScriptedModel,
    bad_json,
    blank,
    call,
    content_filter,
    cut_tool_call,
    drop,
    refusal,
    status,
    text,
    tools,
)
from tests.helpers.command_line import Cli
from tests.helpers.recorded_turns import SETTINGS, measure

ENDS = {
    "a wrong key": [status(401)], "a filter": [content_filter("")], "a request that is wrong": [status(400)],
    "a refusal": [refusal("no")], "nothing at all": [blank()] * 8,
}  # fmt: skip


def failed(home: Path, end: str, seed: int) -> tuple[Store, str]:
    """A turn that survived 12 replies, and then met one that ended it."""
    chance, store = random.Random(f"{end} {seed}"), Store(home)
    kinds = (
        lambda: tools(call("measure", {"place": f"mile {chance.random()}"})),
        lambda: bad_json("measure", '{"place": }'), lambda: cut_tool_call("measure", '{"place": "mi'), drop,
        lambda: status(500),
    )  # fmt: skip
    before = [chance.choices(kinds, [6, 1, 1, 1, 1])[0]() for _ in range(12)]
    agent = Agent(
        ScriptedModel([*before, *ENDS[end], text("done")]), tools=[measure], toolsets=[], home=home,
        store=store, clock=FakeClock(), settings={**SETTINGS, "max_iterations": 30},
    )  # fmt: skip
    turn = agent.run_conversation("how high is the river?").turn_id
    agent.close()
    return store, turn


@pytest.mark.slow
def test_failed_turns_shrink_to_what_their_ends_need(tmp_path: Path) -> None:
    """Twenty turns, to a quarter of their replies all together, and each to the same row and reason. What a
    turn needs in any case stays: nothing at all ends one only when it has been asked for again."""
    before: dict[str, int] = dict.fromkeys(ENDS, 0)
    after = dict(before)
    for end, seed in product(ENDS, range(4)):
        whole = recording_of(*failed(tmp_path / f"{end} {seed}", end, seed))
        smaller, made = shrunk(whole)
        played = Replay(**whole).run()
        assert (made.moves[-1], made.turn_exit_reason) == (played.moves[-1], played.turn_exit_reason)
        replay = Replay(**smaller)
        assert replay.run() == made
        assert replay.left() == []
        before[end] += len(whole["model"])
        after[end] += len(smaller["model"])
    assert after == {**dict.fromkeys(ENDS, 4), "nothing at all": 24}
    assert sum(after.values()) <= sum(before.values()) / 4


def test_a_property_of_your_own_is_kept(tmp_path: Path) -> None:
    """A tool ran although a request had been lost before."""

    def keeps(one: Any) -> bool:
        lost = next((n for n, row in enumerate(one.moves) if row.startswith("ClassifyError")), len(one.moves))
        return "ExecuteTools.done" in one.moves[lost:]

    turns = (recording_of(*failed(tmp_path / str(seed), "a filter", seed)) for seed in range(9))
    whole = next(one for one in turns if keeps(Replay(**one).run()))
    smaller, made = shrunk(whole, keeps)
    assert keeps(made)
    assert len(smaller["model"]) == 3, "the lost request, the call of a tool, and what ends the turn"


AFTER_AN_ERROR = never("No tool runs after an error.", event("done"), after=enters("ClassifyError"))


def test_a_turn_shrinks_to_the_replies_that_break_a_property(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = {seed: failed(tmp_path / str(seed), "a filter", seed) for seed in range(9)}
    keeps = breaks(AFTER_AN_ERROR)
    broken = {seed for seed, turn in homes.items() if keeps(Replay(**recording_of(*turn)).run())}
    assert broken
    assert broken < set(homes), "and some turns keep it"
    seed = min(broken)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from tests.backtest.test_shrinking import AFTER_AN_ERROR\nOTHER = 1\n")
    export = ("sessions", "export", homes[seed][1], "--format", "pytest", "--home", str(tmp_path / str(seed)))
    source = cli.ok(*export, "--shrink", "--breaks", "mine:AFTER_AN_ERROR")
    assert "It breaks: No tool runs after an error." in source
    names: dict[str, Any] = {}
    exec(compile(source, "test_made.py", "exec"), names)
    names["test_turn"]()
    assert len(names["MODEL"]) == 3, "the error, the call of a tool, and what ends the turn"
    for more, says in (
        (["--breaks", "mine:AFTER_AN_ERROR"], "a property is for a test that is shrunk"),
        (["--shrink", "--breaks", "mine:OTHER"], "this is not a property"),
        (["--shrink", "--breaks", "mine:NONE"], "the property cannot be loaded"),
    ):
        code, _, err = cli(*export, *more)
        assert code == 2
        assert says in err
    with pytest.raises(ConfigError, match="this turn does not break the property"):
        make_test(*homes[min(set(homes) - broken)], shrink=True, broken=AFTER_AN_ERROR)


def test_the_file_is_a_test_that_is_green(tmp_path: Path, cli: Cli) -> None:
    _, turn = failed(tmp_path / "home", "a refusal", 1)
    source = cli.ok(
        "sessions", "export", turn, "--format", "pytest", "--shrink", "--home", str(tmp_path / "home")
    )
    assert "Shrunk from " in source
    names: dict[str, Any] = {}
    exec(compile(source, "test_made.py", "exec"), names)
    names["test_turn"]()
    assert len(names["MODEL"]) == 1
    code, _, err = cli("sessions", "export", turn, "--shrink", "--home", str(tmp_path / "home"))
    assert (code, err) == (
        2,
        "fsm-agent: only a test can be shrunk; given: jsonl; allowed: --format pytest\n",
    )


def test_the_whole_turn_is_a_test_as_well(tmp_path: Path) -> None:
    store, turn = failed(tmp_path, "nothing at all", 2)
    names: dict[str, Any] = {}
    exec(compile(make_test(store, turn), "test_made.py", "exec"), names)
    names["test_turn"]()
