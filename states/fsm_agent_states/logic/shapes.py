"""Shapes of the transcript: the properties that decide whether a provider accepts the next request, and what
each state does to them.

A ``Shape`` omits all texts. ``TRANSCRIPT`` declares, for each state and event, what a visit may do to the
shape, and what must hold at every request and at every end; ``WIRES`` says what each wire accepts.
``fsm-agent verify`` proves it by induction over the table; tests check that the states do what is declared
here.

Rows from before the turn may be anything: a caller supplies them, or another program wrote them. The writer
repairs them (``fsm_agent.conversation.wire``): a conversation that does not begin with the user is given a
beginning, and a call without a result is left out. A turn's own rows must need no repair: if a call of its
own were left out, the model would not know of that work. Rows that the settings put before every conversation
are not part of the transcript: they may begin it in its place, and never end it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fsm_agent.conversation.effects import ApiMode
from fsm_agent.conversation.history import opens_group, sendable
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire.form import WIRES, Speaker
from fsm_agent.fsm.properties import SAME, Change, Demand, Promises, VisitChange, may
from fsm_agent_states.replies import CONTINUED


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the rows that are sent. ``first`` and ``tail``: the first and last speaker, ``""`` for no
    rows.

    ``open``: a call of this turn has no result. ``gaps``: one from before the turn has none. ``scaffold``:
    the last speaker of the temporary rows behind the transcript, ``""`` when there are none. ``frozen``: the
    rows of the last request of this turn are still at the front, as they were sent."""

    first: Speaker = ""
    tail: Speaker = ""
    open: bool = False
    gaps: bool = False
    scaffold: Speaker = ""
    frozen: bool = False

    def __str__(self) -> str:
        parts = [f"{self.first or 'nobody'} first", f"{self.tail or 'nobody'} last"]
        parts += ["a call of this turn open"] if self.open else ["all calls closed"]
        parts += ["older ones open"] if self.gaps else []
        parts += [f"a scaffold that ends with {self.scaffold}"] if self.scaffold else ["no scaffold"]
        return f"({', '.join(parts)}, {'as sent' if self.frozen else 'not as sent'})"


def shape_of(
    history: Sequence[Message],
    own: Sequence[Message] = (),
    scaffold: Sequence[Message] = (),
    sent: Sequence[Message] = (),
) -> Shape:
    """Return the shape of a transcript. ``own``: the rows of this turn. ``scaffold``: rows behind the
    transcript. ``sent``: the transcript of the last request, if there was one."""
    mine = {call.id for row in own for call in row.tool_calls}
    rows: list[Message] = []
    run: list[Message] = []
    pending: set[str] = set()
    unanswered: set[str] = set()
    for row in filter(sendable, history):
        if row.role == "tool":
            if row.tool_call_id not in {call.id for reply in run for call in reply.tool_calls}:
                continue  # a result without its call is not sent
            pending.discard(row.tool_call_id or "")
        elif opens_group(run, row):
            unanswered, pending, run = unanswered | pending, set(), []
        pending |= {call.id for call in row.tool_calls}
        run.append(row)
        rows.append(row)
    unanswered |= pending
    return Shape(
        first=_speaker(rows[:1]),
        tail=_speaker(rows[-1:]),
        open=bool(unanswered & mine),
        gaps=bool(unanswered - mine),
        scaffold=_speaker(scaffold[-1:]),
        frozen=bool(sent) and len(sent) <= len(history) and all(map(_is, sent, history)),
    )


def _speaker(rows: Sequence[Message]) -> Speaker:
    return rows[0].role if rows and rows[0].role != "system" else ""


def _is(one: Message, other: Message) -> bool:
    return one is other


# What must be sent unchanged


def takes(mode: ApiMode, shape: Shape) -> bool:
    """Return whether this wire accepts a request with this transcript and scaffold, repaired by the writer,
    without a repair of the turn's own rows."""
    first = shape.first or shape.scaffold
    first = "user" if first == "assistant" else first  # the writer's bridge
    return (
        not shape.open and first in WIRES[mode].first and (shape.scaffold or shape.tail) in WIRES[mode].tail
    )


def with_user_row(shape: Shape) -> Shape:
    """Return the shape with a message of the user appended."""
    return replace(shape, first=shape.first or "user", tail="user")


def begin_with(speaker: Speaker, shape: Shape) -> Shape:
    """Return the shape as sent behind rows that precede every conversation."""
    return replace(shape, first=speaker)


# What a visit does

NO_CHANGE = may()
EMPTY = may(first=("",), tail=("",))
LOADED = may(first=("user", "assistant"), tail=("user", "assistant", "tool"), gaps=(False, True))
"""Anything may come before the turn."""
ASKED = may(first=("user", "assistant"), tail=("user",), gaps=(False, True))
ROUND = may(tail=("tool",), scaffold=("",))
"""The reply's calls and a result for each."""
CALLS = may(tail=("assistant",), open=(True,), scaffold=("",))
"""The calls alone: where a bug strikes between calls and results."""
SHORTER = may(first=(SAME, "user"), tail=(SAME, "user"), gaps=(SAME, False), frozen=(SAME, False))
"""A summary of the middle, then the newest request, and what is kept of the end."""
SENT = may(frozen=(True,))
SAID = may(scaffold=("user",))
UNSAID = may(scaffold=("",))
PERHAPS_UNSAID = may(scaffold=(SAME, ""))
ANSWERED = may(tail=("assistant",), open=(False,), scaffold=("",))
"""Results for calls that a bug left open, then the model's text."""
NOTED = may(open=(False,), scaffold=("",))
RESULTS_NOTED = may(tail=("tool",), open=(False,), scaffold=("",))
"""The same with a note for people, which is not sent."""
WITHDRAWN = tuple(
    may(**before, scaffold=("",), frozen=(SAME, False))
    for before in (EMPTY, may(first=("user", "assistant"), tail=("user", "assistant", "tool")))
)
"""The provider or a guardrail refused the user's message, and it is not sent again."""

PASSED = (
    "built", "oversized", "starved", "spoken", "window_too_small", "over_cost", "over_tokens", "over_time",
)  # fmt: skip
"""Events of a visit of BuildMessages that performed the ordered recovery."""
SPOKEN_TO = tuple(f"CallLLM.{event}" for event, rule in CONTINUED.items() if rule.says)
ASKED_AGAIN = tuple(f"CallLLM.{event}" for event, rule in CONTINUED.items() if rule.says == "")


def _build_changes(change: Change, *after: str) -> tuple[VisitChange, VisitChange]:
    """Return the changes of a BuildMessages visit ordered by the row that led there; a bug may come first."""
    ordered = frozenset(after)
    return (
        VisitChange("BuildMessages", (change,), PASSED, ordered),
        VisitChange("BuildMessages", (NO_CHANGE, change), ("crashed",), ordered),
    )


VISITS = (
    VisitChange("Prepare", (ASKED,), ("ready", "blocked", "cancelled")),
    VisitChange("Prepare", (NO_CHANGE, LOADED, ASKED), ("crashed",)),
    *_build_changes(SAID, "nudges", "thinking_prefills", "revisions", *SPOKEN_TO),
    *_build_changes(UNSAID, "empties", *ASKED_AGAIN),
    *_build_changes(PERHAPS_UNSAID, "fallbacks"),  # a begun answer is still to be continued
    VisitChange("BuildMessages", (NO_CHANGE,)),
    VisitChange("CallLLM", (SENT,)),
    VisitChange("ClassifyError", (NO_CHANGE,)),
    VisitChange("Compress", (SHORTER,), ("compressed",)),
    VisitChange("Compress", (NO_CHANGE, SHORTER), ("crashed",)),
    VisitChange(
        "Compress",
        (NO_CHANGE,),
        ("unsummarized", "lost", "unaffordable", "unchanged", "stuck", "outgrown", "cancelled"),
    ),
    VisitChange(
        "ExecuteTools",
        (ROUND,),
        ("done", "done_free", "answered", "unknown_tools", "handed_over", "halted", "cancelled"),
    ),
    VisitChange("ExecuteTools", (NO_CHANGE,), ("bad_json",)),
    VisitChange("ExecuteTools", (NO_CHANGE, CALLS, ROUND), ("crashed",)),
    VisitChange("EmptyRecovery", (NO_CHANGE,)),
    VisitChange("Finalize", (NOTED,), after=frozenset({"Prepare.crashed"})),
    VisitChange("Finalize", (ANSWERED, NOTED, RESULTS_NOTED), after=frozenset({"ExecuteTools.crashed"})),
    VisitChange(
        "Finalize",
        (ANSWERED, NOTED, *WITHDRAWN),
        after=frozenset({"non_retryable_error", "guardrail_blocked"}),
    ),
    VisitChange("Finalize", (ANSWERED, NOTED)),
)


# What must hold


def _on_all_wires(state: str, what: str, seen: Callable[[Shape], Shape]) -> tuple[Demand, ...]:
    """Return demands that each wire accepts ``what``; ``seen`` maps the shape of the transcript to that of
    ``what``."""
    return tuple(
        Demand(state, f"{mode} takes {what}", partial(lambda mode, shape: takes(mode, seen(shape)), mode))
        for mode in WIRES
    )


def _whole_reply(shape: Shape) -> bool:
    return shape.frozen and not shape.open


DEMANDS = (
    *_on_all_wires("CallLLM", "the request", lambda shape: shape),
    *_on_all_wires("CallLLM", "a request for a last word", lambda shape: replace(shape, scaffold="user")),
    *_on_all_wires(
        "CallLLM", "the request behind rows that begin with the user", partial(begin_with, "user")
    ),
    *_on_all_wires(
        "CallLLM", "the request behind rows that begin with the assistant", partial(begin_with, "assistant")
    ),
    Demand("ExecuteTools", "what the reply answers is as it was sent", _whole_reply),
    Demand("EmptyRecovery", "what the reply answers is as it was sent", _whole_reply),
    Demand("", "all calls of the turn are closed", lambda shape: not shape.open),
    Demand("", "no scaffold is left", lambda shape: not shape.scaffold),
    *_on_all_wires("", "the next message of the user", with_user_row),
)

TRANSCRIPT = Promises(
    name="every request and every end has a transcript that all wires take",
    starts=(Shape(),),
    visits=VISITS,
    demands=DEMANDS,
)
