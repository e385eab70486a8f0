"""What a condition of a breakpoint may be about, besides counters: what was asked for and said in the visit
that a move ended, and what the turn has taken so far.

A condition is asked once for each call of the visit, so that ``tool`` and ``arguments`` are of the same
one; it holds when it holds for one of them. Where there was no call it is asked once, and these texts are
empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.turn_kind import TurnKind

Entries = Sequence[Mapping[str, Any]]
"""Requests of a visit with their replies, as the journal has them."""
NAMED: Mapping[str, str] = {
    "tool": "name of a tool that the model calls, or that was run",
    "arguments": "arguments of the call, as JSON",
    "result": "what the tool gave back, as the model reads it",
    "text": "what the model said",
    "error": "message of a failure, of the provider or of a tool",
}
"""Texts of a turn that talks to a model."""
OF_REQUESTS: Mapping[str, str] = {
    "request": "a request of the state, as JSON",
    "reply": "its reply, as JSON",
}
"""Texts of a turn of another table."""
FIGURES: Mapping[str, str] = {
    "seq": "number of the move",
    "seconds": "how long the state took",
}
SPENT: Mapping[str, str] = {
    "tokens": "tokens of this turn so far",
    "cost": "US dollars of this turn so far, 0 while a price is not known",
}


@dataclass(frozen=True, slots=True)
class TurnCost:
    """What a turn has taken so far. ``cost`` in US dollars, ``None`` while a price is not known."""

    requests: int = 0
    tokens: int = 0
    cost: float | None = 0.0


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """Facts of one move, read when a condition is about them. ``counters`` as they are after it."""

    step: Step
    counters: Mapping[str, int]
    visit: Callable[[], Entries] = tuple
    spent: Callable[[], TurnCost] = TurnCost


def texts_of(kind: TurnKind) -> Mapping[str, str]:
    """The texts that a condition may name, with what they are."""
    return NAMED if kind.talks else OF_REQUESTS


def numbers_of(kind: TurnKind) -> dict[str, str]:
    """The numbers that a condition may name, with what they are; counters first."""
    counters = dict.fromkeys(kind.counters, "counter")
    return {**counters, **FIGURES, **(SPENT if kind.talks else {})}


def asked_of(facts: MoveFacts, names: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield the values to ask a condition with that uses ``names``."""
    values: dict[str, Any] = {**facts.counters, "seq": facts.step.seq, "seconds": facts.step.seconds}
    if names & SPENT.keys():
        spent = facts.spent()
        values |= {"tokens": spent.tokens, "cost": spent.cost or 0.0}
    if names.isdisjoint({*NAMED, *OF_REQUESTS}):
        yield values
        return
    empty = dict.fromkeys((*NAMED, *OF_REQUESTS), "")
    occasions = list(_occasions(facts.visit())) or [{}]
    for occasion in occasions:
        yield {**values, **empty, **occasion}


def _occasions(visit: Entries) -> Iterator[dict[str, str]]:
    for one in visit:
        request, reply = one["request"] or {}, one["reply"] or {}
        if one["kind"] == "CallModel":
            yield from _said(reply)
        elif one["kind"] == "RunTool":
            text, failed = str(reply.get("text", "")), reply.get("status") not in (None, "ok")
            arguments = dumps(request.get("arguments", {}))
            called = {"tool": one["name"], "arguments": arguments, "result": text}
            yield called | ({"error": text} if failed else {})
        else:
            yield {"request": dumps(request), "reply": dumps(reply)}


def _said(reply: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    said = {"text": str(reply.get("text", "")), "error": str(reply.get("message", ""))}
    calls = reply.get("tool_calls") or ()
    return [said | {"tool": one["name"], "arguments": one["arguments"]} for one in calls] or [said]
