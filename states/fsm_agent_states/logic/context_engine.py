"""Shortens a conversation: the target size, and the engine that plans the cut.

The plan comes from the user's engine if there is one; otherwise, and when that plan is unusable, from the
built-in one. The built-in engine is pure and is called directly. The user's engine is asked by a request, so
the journal records its reply; its decision is checked against the shapes of the transcript before anything
changes.

The target of a proactive compaction follows from the threshold. After the provider has refused the request,
it follows from the refusals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fsm_agent.conversation.compaction import BuiltInEngine, Division, assemble
from fsm_agent.conversation.compaction.plan import (
    cut_row,
    is_longer,
    newest_request,
    size_of,
    whole,
    without_parts,
)
from fsm_agent.conversation.effects import (
    AskEngine,
    CallModel,
    Cancelled,
    Compacted,
    EngineAnswer,
    Failure,
    LongContext,
    ModelRequest,
    NoteCompaction,
    Prefetched,
    Preserve,
    Runtime,
    Saved,
    Spill,
)
from fsm_agent.conversation.messages import Message, ModelReply
from fsm_agent.conversation.token_meter import (
    ASSUMED_WINDOW,
    CHARS_PER_TOKEN,
    fault_of,
    plausible,
    threshold,
    tokens_of,
)
from fsm_agent.conversation.wire import WireCopy, format_of
from fsm_agent.conversation.wire.form import Ask, View
from fsm_agent.support.texts import shorten, split_reasoning
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.detect import detect
from fsm_agent_states.logic.facts import prompt_tokens_from
from fsm_agent_states.logic.visit import Asks, say, tell_blocked
from fsm_agent_states.turn import TurnState

MOST_PRESERVED = 4_000
"""Maximum characters that an external memory may add to a summary."""
LEAST_GAIN = 1_000
"""Reduction in characters at which a refused request is worth another try, whatever its length."""
LEAST_ROOM = 2_000
"""Characters allowed for the history besides the newest request when as little as possible is kept."""
BEYOND_DOUBT = 1.25
"""Factor by which prompt, tools and newest request alone must exceed the window; more than 1 because tools
and prose differ in density."""


def built_in(turn: TurnState) -> BuiltInEngine:
    """Return the engine of an agent without one of its own."""
    return BuiltInEngine(turn.settings.compression)


def cut(turn: TurnState, context: LongContext, *, begins: bool) -> Asks[tuple[int, ...]]:
    """Return the places of the rows to remove. The user's engine is asked when a compaction begins, and its
    answer holds until the compaction ends."""
    if turn.compaction.chosen is not None:
        return turn.compaction.chosen
    if begins and turn.setup.has_engine:
        answer: EngineAnswer = yield AskEngine("cut", context)
        if not (why := answer.problem or _unusable_cut(turn, answer.places)):
            turn.compaction.choose(answer.places)
            return answer.places
        yield from _continue_without(why)
    return built_in(turn).cut(context)


def engine_prompt(turn: TurnState, context: LongContext, goes: tuple[int, ...], window: int) -> Asks[str]:
    """Return the prompt that asks a model for a summary of these rows."""
    if turn.setup.has_engine:
        answer: EngineAnswer = yield AskEngine("prompt", context, goes, window)
        if not (why := answer.problem or ("" if answer.prompt.strip() else "its request is empty")):
            return answer.prompt
        yield from _continue_without(why)
    return built_in(turn).prompt(context, goes, window)


def rows(turn: TurnState, context: LongContext, goes: tuple[int, ...], summary: str) -> Asks[list[Message]]:
    """Return the shortened conversation."""
    if turn.setup.has_engine:
        answer: EngineAnswer = yield AskEngine("rows", context, goes, summary=summary)
        known = (*context.rows, *answer.made)
        strange = not all(0 <= place < len(known) for place in answer.places)
        shorter = [] if strange else [known[place] for place in answer.places]
        if not (why := answer.problem or unusable(turn, shorter) or _too_long(turn, context, shorter)):
            return shorter
        yield from _continue_without(why)
    engine = built_in(turn)
    shorter = engine.rows(context, goes, summary)
    if (
        turn.compaction.chosen is not None
        and _too_long(turn, context, shorter)
        and turn.limit("modelless_compactions")
    ):
        shorter = engine.rows(context, engine.cut(context), "")  # the user's choice leaves too much
    return shorter


def unusable(turn: TurnState, rows: Sequence[Message]) -> str:
    """Return why these rows cannot be the transcript; empty when they can."""
    from fsm_agent_states.logic.shapes import (
        TRANSCRIPT,
        shape_of,
    )  # only for a user's engine: it declares a proof

    before, newest = turn.history, newest_request(turn.history)
    if len(set(rows)) < len(rows):
        return "it has a row twice"
    asked = newest_request(rows)
    if newest is not None and (asked is None or rows[asked] is not before[newest]):
        return "the newest message of the user is not in it, or a row behind it passes for one"
    if any(row.role == "system" for row in set(rows) - set(before)):
        return "it has a new system row, which is not sent"
    if _without_calls(rows) - _without_calls(before):
        return "it has a result without its call"
    was, now = (shape_of(one, turn.rows, turn.recovery.scaffold) for one in (before, rows))
    if now not in TRANSCRIPT.allowed(turn.last_transition, "Compress", "compressed", was):
        return f"a conversation {was} cannot become one {now}"
    return ""


def _too_long(turn: TurnState, context: LongContext, rows: Sequence[Message]) -> str:
    """Return why a provider that refused the request would refuse this one, too; empty when it may accept
    it."""
    size = size_of(without_parts(rows))
    if not facts.forced(turn) or size <= context.most:
        return ""
    return f"{size:,} characters, and at most {int(context.most):,} are of use"


def _unusable_cut(turn: TurnState, goes: Sequence[int]) -> str:
    """Return why these rows cannot be removed; empty when they can."""
    history = turn.history
    if not goes:
        return ""
    if list(goes) != sorted(set(goes)) or goes[0] < 0 or goes[-1] >= len(history):
        return f"it names places that are none of 0 to {len(history) - 1}, each once and in order"
    removed = set(goes)
    front, rest = history[: goes[0]], [row for place, row in enumerate(history) if place not in removed]
    return unusable(turn, assemble(Division(tuple(front), (), None, tuple(rest[len(front) :])), "summary"))


def _without_calls(history: Sequence[Message]) -> set[Message]:
    """Return the results without a preceding call of theirs: they are not sent."""
    called: set[str | None] = set()
    found = set()
    for row in history:
        called |= {call.id for call in row.tool_calls}
        if row.role == "tool" and row.tool_call_id not in called:
            found.add(row)
    return found


def _continue_without(why: str) -> Asks[None]:
    yield from say(f"the context engine's answer is not used ({why}): the built-in one continues")


def preserve(turn: TurnState, middle: Sequence[Message]) -> Asks[str]:
    """Return what an external memory wants to keep of these rows (COMP-34), to be appended to their
    summary."""
    if not turn.setup.has_memory:
        return ""
    found: Prefetched = yield Preserve(tuple(middle))
    return f"\n\n## From memory\n{shorten(found.text.strip(), MOST_PRESERVED)}" if found.text.strip() else ""


def shorten_history(
    turn: TurnState, context: LongContext, goes: tuple[int, ...], summary: str
) -> Asks[list[Message]]:
    """Return the history as planned, with the summary of its middle; only pruned when no rows are removed. If
    the compaction is forced and the result too long, images, audio and files are removed."""
    if goes:
        kept = yield from preserve(turn, [context.rows[place] for place in goes])
        context = replace(context, preserved=kept)
    shorter = yield from rows(turn, context, goes, summary)
    length = built_in(turn).plan(context).cut
    if length is not None and (not turn.setup.has_engine or size_of(shorter) > (context.room or 0)):
        shorter = yield from _cut_rows(turn, shorter, length)
    if facts.forced(turn) and size_of(shorter) > context.most:
        shorter = without_parts(shorter)
    return shorter


def _cut_rows(turn: TurnState, rows: Sequence[Message], length: int) -> Asks[list[Message]]:
    """Cut the texts of the model and its tools to this length; the whole of each is saved to a file that is
    named at the cut."""
    shorter = []
    for number, row in enumerate(rows):
        if row.role == "user" or not is_longer(row, length):
            shorter.append(row)
            continue
        saved: Saved = yield Spill(row.tool_call_id or f"{turn.turn_id}-{turn.seq}-{number}", whole(row))
        where = f"the whole is in {saved.path}" if saved.path else f"it could not be saved: {saved.error}"
        shorter.append(cut_row(row, length, where))
    return shorter


# The target size


def context_of(turn: TurnState) -> LongContext:
    """Return the context for an engine: the current size of the history, and its permitted size."""
    before, window = size_of(turn.history), turn.setup.runtime.window or ASSUMED_WINDOW
    room, goal = None, _goal(turn, before)
    if insists(turn):
        room, goal = (None, before) if hopeless(turn, before) else (room_left(turn, before), goal)
    return LongContext(
        tuple(turn.history),
        window,
        before,
        goal,
        _enough(turn, before),
        room,
        facts.forced(turn),
        facts.compacted_before(turn),
        turn.compaction.focus,
    )


def _enough(turn: TurnState, before: int) -> float:
    least = before * turn.settings.compression.min_progress
    return before - (min(least, LEAST_GAIN) if insists(turn) else least)


def _goal(turn: TurnState, before: int) -> int:
    """Return the target size in characters: half of the threshold, so that the next rounds fit too; at most
    half of the current size when forced."""
    wanted = (
        threshold(turn.setup.runtime.window or ASSUMED_WINDOW, turn.settings.compression)
        * CHARS_PER_TOKEN
        // 2
    )
    return min(wanted, before // 2) if facts.forced(turn) else wanted


def insists(turn: TurnState) -> bool:
    """Return whether the provider refused the request and no later model of the chain can take it as it
    is."""
    return facts.forced(turn) and turn.count("overflows") > 0 and not facts.next_is_wider(turn)


def room_left(turn: TurnState, before: int) -> int:
    """Return the characters that a history of ``before`` may have, derived from the refusals of this call
    block. The last compaction that the block allows must leave as little as it can."""
    least = LEAST_ROOM + _request_chars(turn)
    if turn.count("overflows") >= turn.limit("overflows"):
        return least
    window, request = turn.setup.runtime.window, turn.call.request
    if window is None or request is None:
        return max(least, before // 2)
    allowed = request.chars * threshold(window, turn.settings.compression) // _tokens(turn, window)
    room = allowed - (request.chars - before)
    return max(least, room if turn.count("overflows") == 1 else min(room, before // 2))


def hopeless(turn: TurnState, before: int) -> bool:
    """Return whether the refusal's count of tokens shows that not even prompt, tools and the newest request
    fit alone."""
    window, request = turn.setup.runtime.window, turn.call.request
    if window is None or request is None or _plausible_count(turn) is None:
        return False
    alone = request.chars - before + _request_chars(turn)
    return alone > request.chars * window / _tokens(turn, window) * BEYOND_DOUBT


def _request_chars(turn: TurnState) -> int:
    newest = newest_request(turn.history)
    return 0 if newest is None else size_of([turn.history[newest]])


def _tokens(turn: TurnState, window: int) -> int:
    """Return the tokens of the refused request: as counted by the provider, else at least as many as its
    window has."""
    return _plausible_count(turn) or max(turn.call.estimate, window)


def _plausible_count(turn: TurnState) -> int | None:
    """Return the provider's count of tokens; ``None`` for one that cannot be true."""
    failure, request = turn.recovery.failure, turn.call.request
    counted = prompt_tokens_from(failure.detail) if failure else None
    return counted if counted and request and plausible(counted, request.chars) else None


# ----------------------------------------------------------------------------------------------------
# The summary of a compaction: by the auxiliary models first, then by the main one, each paid for by its own
# row; then without a model.


KEEPS_HISTORY = {
    "auth",
    "auth_permanent",
    "billing",
    "rate_limit",
    "upstream_rate_limit",
    "timeout",
    "stale",
    "stale_breaker",
}
"""Failures of access and network, after which an automatic compaction leaves the history unchanged
(COMP-26)."""


Without = Literal["unsummarized", "lost", "cancelled"]
"""The event to report when the model that was asked gave no summary."""


@dataclass(frozen=True, slots=True)
class Summary:
    """``text`` and ``model`` are empty when no model gave one."""

    text: str = ""
    model: str = ""


def summarize(turn: TurnState, context: LongContext, goes: tuple[int, ...]) -> Asks[Summary | Without]:
    """Request a summary of these rows from the model whose turn it is."""
    number, runtime = _summarizer(turn)
    prompt = yield from engine_prompt(turn, context, goes, runtime.window or ASSUMED_WINDOW)
    reply: ModelReply | Failure | Cancelled = yield _call(turn, runtime, prompt, number)
    turn.accounting.charge(reply, runtime)
    match reply:
        case Cancelled():
            return "cancelled"
        case Failure(kind="lost"):
            return "lost"
        case Failure():
            why = detect(reply).name
        case ModelReply():
            if text := split_reasoning(reply.text)[0].strip():
                return Summary(text, runtime.model)
            why = "empty"
    yield from say(f"{runtime.model} gave no summary ({why.replace('_', ' ')})")
    turn.compaction.record_no_summary(why)
    if number is None:  # the last summarizer
        noted: Compacted = yield NoteCompaction("summary_failed", fault=fault_of(why))
        yield from tell_blocked(turn.compaction.compaction_blocked, noted)
        turn.compaction.judge(noted)
    return "unsummarized"


def keeps_history(turn: TurnState) -> bool:
    """Return whether the history stays unchanged because no model gave a summary for a transient reason. A
    forced compaction always gets a summary: the provider has refused the history as it is."""
    left = facts.goes_without_model(turn) and turn.compaction.unsummarized in KEEPS_HISTORY
    return left and not facts.forced(turn)


def _summarizer(turn: TurnState) -> tuple[int | None, Runtime]:
    """Return the model that the row which led here paid for: its number among the auxiliary ones, or ``None``
    for the main one. A turn that was resumed elsewhere may find fewer."""
    place = turn.count("summarizers") - 1
    auxiliary = turn.setup.auxiliary
    return (place, auxiliary[place]) if place < len(auxiliary) else (None, turn.setup.runtime)


def _call(turn: TurnState, runtime: Runtime, prompt: str, number: int | None) -> CallModel:
    form = format_of(runtime.api_mode)
    messages = WireCopy().messages("", [Message("user", prompt)], (), View(runtime.api_mode))
    plain = runtime.repairs if number is not None else turn.recovery.repairs_done
    temperature = None if "temperature" in plain else turn.settings.temperature
    cap = turn.call.affordable
    ask = Ask(runtime, temperature=temperature, output_cap=cap, firm=cap is not None)
    body = form.body(ask, messages)
    request = ModelRequest(
        body, runtime.streaming, toolless=True, purpose="summary", estimate=tokens_of(len(body))
    )
    return CallModel(
        request,
        turn.stale_after(request),
        turn.settings.timeout.total,
        auxiliary=number,
        attempt=turn.count("summarizers"),
        most=turn.limit("summarizers"),
    )
