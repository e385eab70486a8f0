"""A visit of a state: a generator over the turn that yields requests, receives their replies, and returns one
event."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import (
    AnswerChecked,
    CheckAnswer,
    CheckLimits,
    CheckMessage,
    CheckSignals,
    Compacted,
    ExtensionAnswer,
    LimitsChecked,
    MessageChecked,
    Point,
    Request,
    Signals,
    Tell,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.token_meter import LEAST_REPLY
from fsm_agent.conversation.wire.form import View, reduced_parts
from fsm_agent.errors import ExtensionFailed
from fsm_agent.support.texts import clean
from fsm_agent_states.logic.facts import output_cap
from fsm_agent_states.replies import CONTINUED
from fsm_agent_states.turn import TurnState

T = TypeVar("T")
Asks = Generator[Request | list[Any], Any, T]
"""Yields a request, or a list of concurrent ones, and returns a ``T``: for a state, its ``Event``."""


def check_signals(turn: TurnState, request: CheckSignals | None = None) -> Asks[Signals]:
    """Ask whether a person interrupts. Their message is kept for the result; the state must report that it
    was cancelled."""
    signals: Signals = yield request or CheckSignals()
    if signals.interrupted:
        turn.ending.hear(signals)
    return signals


def at(point: Point, turn: TurnState) -> Asks[None]:
    """Make all requests that extensions declared for this point, at once. Their keys contain the point, so a
    visit that is run again, perhaps without an earlier check, takes no reply meant for another point. No
    reply leads to an event; a failure that ends the turn is raised, so the row for bugs ends it."""
    asked = [
        replace(one, key=signature(f"{turn.turn_id} {turn.seq} {point} {one.listed()[0]}", one.request))
        for one in turn.extended.asks
        if one.point == point
    ]
    if not asked:
        return
    answers: list[ExtensionAnswer] = yield asked
    for request, answer in zip(asked, answers, strict=True):
        turn.extended.note(request, answer)
        if answer.problem and request.ends:
            raise ExtensionFailed(answer.problem)


# ----------------------------------------------------------------------------------------------------
# Checks before something goes in or out: guardrails, the type of the answer, limits in money, tokens and
# time. Each is a request of its own, so that the journal records its result, and is made only by a turn that
# has any.


Over = Literal["over_cost", "over_tokens", "over_time"]
"""Events of a limit that the next request could exceed."""
CAP_TOKENS = 24
"""Tokens that a cap on the reply may add to the request."""
OVER: dict[str, Over] = {"cost": "over_cost", "tokens": "over_tokens", "time": "over_time"}


def check_message(turn: TurnState, text: str) -> Asks[str | None]:
    """Return the user's text after the guardrails; ``None`` when one of them refuses it."""
    if not turn.setup.checks.message:
        return text
    checked: MessageChecked = yield CheckMessage(text)
    if refused(turn, checked):
        turn.recovery.explain("guardrail", checked.blocked)
        return None
    if checked.text is not None:
        yield from say(f"the message was changed by {', '.join(checked.by)}")
    return text if checked.text is None else clean(checked.text)


def refused(turn: TurnState, checked: MessageChecked) -> bool:
    """Return whether a guardrail refused the message. If so, it stays for people to see, and is not sent
    again."""
    if checked.blocked:
        turn.ending.refuse(", ".join(checked.by), checked.blocked, "message")
    return bool(checked.blocked)


def check_answer(
    turn: TurnState, text: str, *, typed: bool = True
) -> Generator[CheckAnswer, Any, AnswerChecked]:
    """Check a text that may be the answer. ``typed``: it must be of the requested type."""
    checked: AnswerChecked = yield CheckAnswer(text, typed)
    if checked.blocked:
        turn.ending.refuse(", ".join(checked.by), checked.blocked, "answer")
        turn.recovery.explain("guardrail", checked.blocked)
    elif checked.problem:
        turn.recovery.explain("invalid_output", checked.problem)
    return checked


def check_limits(
    turn: TurnState, prompt: int, output: int | None, *, summary: bool = False
) -> Asks[Over | None]:
    """Return the limit that a request of ``prompt`` tokens could exceed, if any. ``output``: the maximum
    tokens of its reply, ``None`` without a cap. If less than that is left, the reply is shortened."""
    if not turn.setup.checks.limits:
        return None
    runtime = turn.setup.runtime
    known = output or runtime.most_output
    room = math.inf if runtime.window is None else max(LEAST_REPLY, runtime.window - prompt - CAP_TOKENS)
    most = known or int(min(turn.settings.length.cap_max, room))
    checked: LimitsChecked = yield CheckLimits(prompt + CAP_TOKENS, most, summary)
    if checked.over:
        turn.recovery.explain("limit", checked.why)
        turn.ending.limit_reached(checked.limit)
        return OVER[checked.over]
    turn.call.set_budget(None if checked.output_tokens == known else checked.output_tokens)
    return None


# ----------------------------------------------------------------------------------------------------
# The lines that a person reads while a turn recovers: what happens, and what to do about it.
#
# One line for each thing that a row orders; the outcome of an attempt is reported where the attempt is made.


Line = Callable[[TurnState], str]
SHOWN = 3
"""Maximum content parts that a line names; it counts the others."""


def say(line: str) -> Asks[None]:
    """Show people one line."""
    yield Tell("status", (line,))


def order_line(turn: TurnState) -> str:
    """Describe in words what the row that led here ordered; empty when there is nothing to say."""
    spent, row = turn.spent, turn.last_transition
    if "continuations" in spent and row is not None and row.event in CONTINUED:
        [limit] = {atom.limit for atom in row.guard.atoms() if atom.counter == "continuations"}
        count = turn.count("continuations")
        line = f"{CONTINUED[row.event].tells} ({count} of {turn.limit(limit)})"
        reply, capped = turn.call.reply, row.event == "cut_call"
        cut = capped or (reply is not None and reply.finish == "length")
        return f"{line}{_more_output(turn)}" if cut else line
    for counter, words_of in ORDERED.items():
        if counter in spent:
            return f"{words_of(turn)}{_which(turn, counter)}"
    return ""


def _which(turn: TurnState, counter: str) -> str:
    most = turn.limit(counter)
    return f" ({turn.count(counter)} of {most})" if counter not in ("summary_calls", "lost_requests") else ""


def _more_output(turn: TurnState) -> str:
    """Describe, after a truncated reply, the cap of the next one and the setting that avoids the
    truncation."""
    given = turn.settings.max_output_tokens
    now = "" if given is None else f", now {given:,}"
    return f" with {output_cap(turn):,} tokens; raise the output cap: max_output_tokens{now}"


def _summary_call(turn: TurnState) -> str:
    if turn.count("summary_calls") > 1:
        return "no summary came: it is asked for once more"
    most = turn.settings.max_iterations
    used = (
        f"the limit of {most} iterations is"
        if turn.count("iterations") >= most
        else "the shared iterations are"
    )
    return f"{used} reached: a summary is asked for; raise max_iterations for longer tasks"


ORDERED: Mapping[str, Line] = {
    "summary_calls": _summary_call,
    "lost_requests": lambda turn: "the process ended while a request was out: it is sent again",
    "invalid_tool_rounds": lambda turn: "the model's calls cannot be run: asked again with the reasons",
    "reasks": lambda turn: "the arguments of a call are not JSON: asked again",
    "nudges": lambda turn: "an empty reply after tools: asked to continue",
    "thinking_prefills": lambda turn: "only thoughts, no answer: the model gets them back",
    "empties": lambda turn: "an empty reply: asked again",
    "revisions": lambda turn: "the answer is not what was asked for: asked again with the reasons",
}
"""The line for each counter that a row spends."""
REPAIRED: Mapping[str, str] = {
    "thinking_signature": "without earlier thoughts, whose signatures were refused",
    "encrypted_replay": "without earlier encrypted thoughts, which were refused",
    "long_context_beta": "without the long-context beta, which this account does not have",
    "grammar": "with plainer tool schemas: the server cannot read some patterns",
    "structured_output": "without a JSON schema for the answer, which was refused",
    "no_streaming": "not streamed, which this model cannot do",
    "smaller_images": "with smaller images",
    "audio": "without audio, which this model does not take",
    "files": "without files, which this model does not take",
    "temperature": "without temperature, which this model does not take",
    "effort": "without an effort, which this model does not take",
    "output_key": "with the other name of the output cap",
    "vision": "without images, which this model does not take",
    "flat_tool_content": "with tool results as plain text",
    "surrogates": "without characters that cannot be written",
    "ascii": "in plain ASCII",
}
"""What each repair changes in the request that is sent again."""


def repair_line(turn: TurnState, repair: str) -> str:
    """Return the line about a repair of the request."""
    if repair == "output_cap":
        cap = turn.recovery.output_cap or 0
        return f"sent again with at most {cap:,} output tokens; lower max_output_tokens to be spared this"
    return f"sent again {REPAIRED[repair]}"


def compaction_line(metrics: Mapping[str, Any], times: int) -> str:
    """Return the line about a compaction that shortened the conversation."""
    rows, tokens = [
        f"{metrics[f'{what}_before']:,} → {metrics[f'{what}_after']:,}" for what in ("messages", "tokens")
    ]
    again = f"; {times} times in this session, details may be lost" if times > 1 else ""
    return f"compacted: {rows} messages, about {tokens} tokens{again}"


def tell_blocked(before: str, noted: Compacted) -> Asks[None]:
    """Report once that automatic compaction is switched off. ``before``: why it was off already."""
    if noted.blocked and not before:
        yield from say(f"automatic compaction is off: {noted.blocked}")


def tell_parts(turn: TurnState, rows: Sequence[Message] | None = None) -> Asks[None]:
    """Report which parts of ``rows`` the current model knows only by name, and which files only by their
    text; each line once. Without ``rows`` the whole history is examined: when a turn begins, and after a
    change of the model or the request."""
    runtime = turn.setup.runtime
    model = f"{runtime.provider}:{runtime.model}"
    view = View.of(runtime, turn.recovery.repairs_done)
    named, read = reduced_parts(turn.history if rows is None else rows, view)
    if named:
        words = f"{model} does not take {_join_names(named)}: it reads only that the message had such a part"
        yield Tell("status", (words,), once=True)
    if read:
        yield Tell("status", (f"{model} does not take {_join_names(read)}: it gets the text",), once=True)


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
