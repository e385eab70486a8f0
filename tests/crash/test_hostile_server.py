"""Requests at the server against what the turns say that they sent, and against the bound that is printed: for
turns with everybody against them, which are killed and resumed. A failure names its seeds:
``python -m tests.crash.test_hostile_server SEED`` plays one of them again."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest

from fsm_agent.fsm.verify import verify_table
from fsm_agent.fsm.verify.reach import TimeLimit
from fsm_agent.providers.scripted.replies import Reply, silence, text
from fsm_agent.testing import Received, ScriptedServer, repeat
from fsm_agent_states.table import TURN
from tests.crash.hostile_engines import FAULTS
from tests.crash.hostile_plan import Plan, described
from tests.helpers.extreme_settings import request_bound
from tests.helpers.processes import printed
from tests.helpers.sample import at_least, sampled, sampled_seeds

Found = dict[str, Any]


class Hostile:
    """The server, and another one that requests are sent on to. ``sent``: how many requests came from each turn,
    by (seed, session), and ``trees`` from each with its children."""

    def __init__(self) -> None:
        self.sent: Counter[tuple[int, str]] = Counter()
        self.elsewhere = ScriptedServer(repeat(text("you should not be here")))
        self.server = ScriptedServer(repeat(self._answer))
        self.trees: Counter[int] = Counter()
        self._lives: Counter[tuple[int, int]] = Counter()

    def __enter__(self) -> Self:
        self.elsewhere.start()
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        self.elsewhere.close()

    def _answer(self, received: Received) -> Reply:
        plan, session = self._count(received)
        words = received.headers.get("x-api-key") or received.headers["authorization"]
        process, life = map(int, words.rsplit("-", 2)[1:])
        self._lives[plan.seed, life] += 1
        dies = plan.kills[life] if life < len(plan.kills) else None
        if dies == ("request", self._lives[plan.seed, life]):
            os.kill(process, signal.SIGKILL)
        if dies == ("answer", self._lives[plan.seed, life]):
            return silence("it begins", hook=lambda: os.kill(process, signal.SIGKILL))
        places = {"here": f"http://127.0.0.1:{self.server.port}{received.path}", "there": self.elsewhere.url}
        who = "root" if session == "root" else f"{session.count('.')} {session[-1]}"
        return plan.answer(who, self.sent[plan.seed, session], self.trees[plan.seed], places)

    def _count(self, received: Received) -> tuple[Plan, str]:
        _, seed, session, *_ = received.path.split("/")
        self.sent[int(seed), session] += 1
        self.trees[int(seed)] += 1
        return Plan.of(int(seed)), session

    def play(self, seeds: range, workers: int = 2, fault: str = "") -> list[Found]:
        """Play these turns; what each says of itself."""

        def share(worker: int) -> str:
            mine = seeds[worker::workers]
            place = map(str, (self.server.port, mine.start, len(mine), mine.step))
            more = [fault] if fault else []
            return printed("-m", "tests.crash.hostile_turns", *place, *more, timeout=None)

        with ThreadPoolExecutor(workers) as pool:
            lines = "".join(pool.map(share, range(workers))).splitlines()
        for late in self.server.cut_off:
            self._count(late)
        assert not self.server.errors
        return [json.loads(line) for line in lines]


def wrong(found: Found, hostile: Hostile) -> Iterator[str]:
    """What does not hold of one turn and its children, in words."""
    plan = Plan.of(found["seed"])
    if found["signal"] or "exit" not in found:
        yield f"it ended by signal {found['signal']}: {found.get('error')}"
        return
    if found["exit"] == "local_processing_error":
        yield f"a bug: {found['error']}"
    if (tree := hostile.trees[plan.seed]) > (most := plan.limits.attempts_per_tree()):
        yield f"{tree} requests of the tree, under a cap of {most}"
    for turn in found["family"]:
        who, said, limits = turn["session"], turn["attempts"], turn["limits"]
        sent, most = hostile.sent[plan.seed, who], plan.of_child(who).attempts_per_turn()
        raised = any(turn["last"][name] > limits[name] for name in limits)
        if limits and (limits["attempts"] != most or raised):
            yield f"{who}: limits were {limits} and became {turn['last']}"
        if sent > most:
            yield f"{who}: {sent} requests under a cap of {most}"
        if limits and sent > request_bound().value(limits):
            yield f"{who}: {sent} requests, at most {request_bound().value(limits)} were printed"
        if said is not None and (sent > said if plan.killed else sent != said):
            yield f"{who}: {sent} requests, it says {said}"


def violations(seeds: range, fault: str = "") -> tuple[list[str], list[Found], Hostile]:
    """What does not hold of these turns; each line can be played again."""
    with Hostile() as hostile:
        found = hostile.play(seeds, fault=fault)
    lines = [f"seed {one['seed']}: {line}" for one in found for line in wrong(one, hostile)]
    known = {(one["seed"], turn["session"]) for one in found for turn in one.get("family", ())}
    lines += [
        f"seed {seed}: {session} is not a turn, and sent" for seed, session in hostile.sent.keys() - known
    ]
    lines += [f"{len(hostile.elsewhere.requests)} requests went elsewhere"] * bool(hostile.elsewhere.requests)
    assert sorted(one["seed"] for one in found) == list(seeds)
    return lines, found, hostile


@pytest.mark.slow
def test_no_turn_sends_more_than_is_printed() -> None:
    assert violations(range(6))[0] == []


@pytest.mark.slow
def test_two_thousand_turns_send_no_more_than_is_printed() -> None:
    lines, found, hostile = violations(sampled_seeds(range(1_000, 3_000), "hostile servers"))
    assert lines == []
    turns = [(one["seed"], turn) for one in found for turn in one["family"] if turn["limits"]]
    sent = [(hostile.sent[seed, turn["session"]], turn["limits"]) for seed, turn in turns]
    reached = [limits for count, limits in sent if count == request_bound().value(limits)]
    total = sum(count for count, _ in sent)
    print(f"{total} requests of {len(sent)} turns, {len(reached)} exactly at their bound")
    assert len(reached) > at_least(100), "the server is not hostile enough to try the bound"
    for count, limits in sorted(sent, key=lambda one: -one[0])[:5]:
        report = verify_table(TURN, limits, small=False, within=TimeLimit(10))
        figure = next(one for one in report.figures if one.caps and one.quantity == request_bound().name)
        assert figure.value is not None
        assert count <= figure.value <= request_bound().value(limits)


@pytest.mark.slow
@pytest.mark.parametrize("fault", sampled(FAULTS, "hostile engines"))
def test_an_engine_that_sends_more_is_noticed(fault: str) -> None:
    """By one of a hundred turns; the first few are nearly always enough."""
    assert any(violations(range(first, first + 20), fault)[0] for first in range(40, 140, 20))


if __name__ == "__main__":
    played = range(int(sys.argv[1]), int(sys.argv[1]) + 1)
    print(described(Plan.of(played.start)), *violations(played, *sys.argv[2:])[:2], sep="\n")
