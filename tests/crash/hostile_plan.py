"""What happens in a turn with everybody against it, as a function of a number: settings, models, keys, what the
server answers, and when the process is killed. The server and the processes that it kills both make it from the
seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from fsm_agent.providers.scripted.replies import Reply, call, overflow, silence, slow, status, text, tools
from fsm_agent.settings import Settings
from fsm_agent.testing.strategies import BROKEN, REFUSED, SAID

MODES = ("chat_completions", "codex_responses", "anthropic_messages")
ENOUGH = 90
"""Requests of one tree after which the server says something that ends a turn: what is tested is rarely large."""
SILENT = 0.25
"""Seconds without a chunk after which a request counts as dead."""
SILENCES = ("connect", "headers", "a few words")
Kill = tuple[Literal["request", "answer", "before", "after"], int]
"""The n-th request that a process makes, as it arrives or when its answer has begun; or a commit of it."""


@dataclass(frozen=True)
class Plan:
    """One turn. ``entries`` are the chain's, ``auxiliary`` the models for summaries: each what an agent takes,
    but for addresses. ``interrupt``: the request at which a person breaks it off, and seconds after its start."""

    seed: int
    settings: Mapping[str, Any]
    entries: tuple[Mapping[str, Any], ...]
    auxiliary: tuple[Mapping[str, Any], ...]
    history: tuple[Mapping[str, str], ...]
    kills: tuple[Kill, ...]
    interrupt: tuple[int, float] | None
    odds: Mapping[str, float]

    @classmethod
    @cache
    def of(cls, seed: int) -> Plan:
        pick = random.Random(seed)
        entries = tuple(_entry(pick) for _ in range(pick.choice([1, 1, 2, 3, 4])))
        return cls(
            seed=seed, settings=_settings(pick), entries=entries,
            auxiliary=tuple(_entry(pick) for _ in range(pick.choice([0, 0, 1, 2, 5]))),
            history=_history(pick.choice([0, 0, 6, 24]), pick.choice([20, 200])),
            kills=tuple(_kill(pick) for _ in range(pick.choice([0, 0, 0, 1, 2, 4]))),
            interrupt=(pick.randint(1, 6), pick.choice([0, 0.001, 0.01])) if pick.random() < 0.1 else None,
            odds={name: pick.choice([0, 0.1, 0.3, 1]) * usual for name, usual in USUAL.items()},
        )  # fmt: skip

    @property
    def limits(self) -> Settings:
        return Settings.of(self.settings)

    def of_child(self, session: str) -> Settings:
        """The settings of the turn itself (``root``), or of a child of it."""
        most = self.limits.delegation.max_iterations
        return self.limits if session == "root" else self.limits.model_copy(update={"max_iterations": most})

    @property
    def killed(self) -> bool:
        return bool(self.kills)

    def answer(self, who: str, number: int, tree: int, places: Mapping[str, str]) -> Reply:
        """To the ``number``-th request of a turn, the ``tree``-th of all. ``places``: where redirects lead."""
        if tree > ENOUGH:
            return text("enough.")
        pick = random.Random(f"{self.seed} {who} {number}")
        kind = pick.choices(["text", *self.odds], [0.05, *self.odds.values()])[0]
        return ANSWERS[kind](pick, places)


def _entry(pick: random.Random) -> dict[str, Any]:
    local = pick.random() < 0.1
    return {
        "model": "llamacpp:small" if local else f"openai:m{pick.randint(0, 3)}",
        "api_mode": "chat_completions" if local else pick.choice(MODES),
        "context_window": pick.choice([None, 2_000, 4_000, 16_000]),
        "api_key": [f"key-{number}" for number in range(pick.choice([1, 1, 2, 4]))],
    }


def _history(rows: int, words: int) -> tuple[Mapping[str, str], ...]:
    roles = ("user", "assistant")
    return tuple({"role": roles[n % 2], "content": f"row {n} " + "word " * words} for n in range(rows))


def _kill(pick: random.Random) -> Kill:
    return pick.choice(["request", "request", "answer", "before", "after"]), pick.randint(1, 6)


def _settings(pick: random.Random) -> dict[str, Any]:
    def some(*values: Any) -> Any:
        return pick.choice(values)

    return {
        "max_iterations": some(0, 1, 3, 8, 20, 90),
        "api_max_retries": some(1, 2, 3, 30),
        "max_attempts_per_turn": some(None, None, None, 1, 2, 3, 5, 8, 40),
        "max_attempts_per_call_block": some(None, None, None, None, None, 1, 2, 100),
        "max_output_tokens": some(None, 100),
        "invalid_tool_strikes": some(1, 3, 100),
        "invalid_json_retries": some(0, 3, 100),
        "explain_abnormal_end": some(True, False),
        "dump_failed_requests": False,
        "budget": {"grace_call": some(True, False), "max_free_rounds": some(None, 0, 3)},
        "length": {"max_continuations": some(0, 3, 100), "tool_retries": some(0, 4, 100)},
        "continuation": {"acks_enabled": some(True, False), "ack": some(0, 2, 100), "scratchpad": some(0, 2, 100)},
        "empty": {"nudges": some(0, 1, 100), "prefills": some(0, 2, 100), "retries": some(0, 3, 100)},
        "compression": {
            "enabled": some(True, True, True, False),
            "mode": some("in_place", "in_place", "rotate"),
            "preflight_passes": some(0, 1, 3, 30),
            "max_per_streak": some(0, 1, 3, 30),
            "tail_floor": 3,
            "protect_first": some(0, 3),
        },
        "credential": {"cooldown_auth": some(0, 300), "auth_refresh_max": some(0, 2, 30)},
        "delegation": {
            "budget": some("independent", "shared", "tree_cap"),
            "max_iterations": some(0, 1, 3, 50),
            "max_children": some(1, 3),
            "max_depth": some(0, 1, 1, 1, 2),
            "tree_cap_factor": some(1, 3),
            "max_attempts_per_tree": some(None, None, 1, 6),
        },
        "stale": {"stream": SILENT, "whole": SILENT, "local": SILENT, "giveup": some(1, 2, 5)},
        "max_lost_requests": some(0, 1, 10),
        "tool": {"delay": 0},
        "poll": {"control": 0.05},
        "prompt": {"context_files": False},
        "store": {"index": False},
    }  # fmt: skip


def _said(pick: random.Random, _: Mapping[str, str]) -> Reply:
    whole = [one for one in SAID.values() if isinstance(one, Reply) and not one.delay]
    return pick.choice([*whole, slow("one two three", 0.01), Reply(text="half of ", finish="incomplete")])


def _called(pick: random.Random, _: Mapping[str, str]) -> Reply:
    good = call("echo", {"text": f"n{pick.randint(0, 99)}"})
    odd = pick.choice([good, good, call("nope"), call("fail"), call("echo", "{"), call("", "null")])
    return tools(*pick.choice([(good,), (odd,), (good, odd)]), text=pick.choice(["", "so far so good"]))


def _delegated(pick: random.Random, _: Mapping[str, str]) -> Reply:
    goals = [{"goal": f"task {number}"} for number in range(pick.randint(1, 3))]
    return tools(*[call("delegate_task", {"tasks": goals})] * pick.choice([1, 1, 2]))


def _refused(pick: random.Random, _: Mapping[str, str]) -> Reply:
    return pick.choice([one for one in REFUSED.values() if isinstance(one, Reply)])


def _again(pick: random.Random, _: Mapping[str, str]) -> Reply:
    """What is worth another try."""
    return pick.choice([REFUSED["429"], REFUSED["500"], REFUSED["503"], REFUSED["529"], SAID["blank"]])


def _broken(pick: random.Random, _: Mapping[str, str]) -> Reply:
    return pick.choice([one for one in BROKEN.values() if isinstance(one, Reply)])


def _too_long(pick: random.Random, _: Mapping[str, str]) -> Reply:
    return overflow(pick.choice([500, 2_000, 3_000, 20_000]))


def _full(pick: random.Random, _: Mapping[str, str]) -> Reply:
    """A tool round whose usage says that the window is nearly full: the next request is preceded by a
    compaction."""
    usage = replace(Reply().usage, input=pick.choice([1_900, 3_900, 15_900]))
    return replace(_called(pick, _), usage=usage)


def _elsewhere(pick: random.Random, places: Mapping[str, str]) -> Reply:
    code, place = pick.choice([301, 302, 303, 307, 308]), pick.choice(list(places.values()))
    return status(code, "", {"Location": place})


def _silent(pick: random.Random, _: Mapping[str, str]) -> Reply:
    return silence(pick.choice(SILENCES)) if pick.random() < 0.2 else _broken(pick, _)


ANSWERS = {
    "text": lambda pick, places: text("an answer."), "said": _said, "called": _called, "full": _full,
    "delegated": _delegated, "refused": _refused, "again": _again, "broken": _broken, "too long": _too_long,
    "elsewhere": _elsewhere, "silent": _silent,
}  # fmt: skip
"""Everything that providers are known to answer, in groups."""
USUAL = dict.fromkeys(ANSWERS, 1.0) | {
    "again": 5, "called": 4, "full": 3, "delegated": 2, "text": 0.5, "elsewhere": 0.5,
}  # fmt: skip
"""How often each is met; what ends a turn, less often. A turn meets some groups more often than others."""


def described(plan: Plan) -> str:
    said = {"seed": plan.seed, "kills": plan.kills, "auxiliary": len(plan.auxiliary)}
    return json.dumps({**said, **plan.settings})
