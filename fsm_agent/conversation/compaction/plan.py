"""The plan of a compaction: what it prunes, where it cuts, what it protects, and how it assembles."""

# A refusal makes a compaction protect less. The settings' protection is a preference that yields to a
# refusal: front rows, tail, and the texts of the last reply are given up, in this order and only as needed.
# The required size comes from the refusal (its window, or its token count if plausible). A second refusal
# halves it, and the last compaction of the call block keeps only prompt, tools, the newest request, and a
# short summary. All of this is planned before a summary is paid for. Cut texts remain complete in the store
# and in a named file. A wider fallback is preferred.

# The newest request follows the summary, word for word. In a long turn the request is at the very front. If
# compaction removes the rows after it, the request moves behind the summary, because the summary says that
# only messages after it need an answer.

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import Part, carrier_of, kind_of, name_part, text_of_file, weight
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import shorten

# Phase 2: where to cut. Boundaries are between runs, so that no call is separated from its result. (Why:
# decision 56.)


LEAST_TAIL = 3
"""Rows of the tail, unless a provider's refusal requires fewer."""


@dataclass(frozen=True, slots=True)
class Division:
    """``front`` stays before the summary, ``middle`` is replaced by it, ``request`` is the newest user
    request if it would be in the middle, ``tail`` stays after the summary."""

    front: tuple[Message, ...]
    middle: tuple[Message, ...]
    request: Message | None
    tail: tuple[Message, ...]

    @property
    def kept(self) -> list[Message]:
        """The rows that stay."""
        return [*self.front, *([self.request] if self.request is not None else []), *self.tail]


def divide(
    history: Sequence[Message], *, front: int, tail_chars: int, tail_rows: int, soft_factor: float
) -> Division:
    """Divide a history: about ``front`` rows before the summary, and ``tail_chars`` characters but at least
    ``tail_rows`` rows after it. A run that begins inside the budget may exceed it by ``soft_factor``."""
    newest = newest_request(history)
    start = _after_results(history, min(front, len(history) if newest is None else newest))
    end = _tail_start(history, tail_chars, tail_rows, soft_factor)
    end = max(start, _with_visible_answer(history, end, tail_chars, soft_factor))
    middle = tuple(history[start:end])
    request = history[newest] if newest is not None and start <= newest < end else None
    return Division(
        front=tuple(history[:start]),
        middle=tuple(row for row in middle if row is not request),
        request=request,
        tail=tuple(history[end:]),
    )


def size_of(rows: Sequence[Message]) -> int:
    """Return roughly the characters sent for these rows; a part that is not text counts by its ``weight``."""
    return sum(_size(row) for row in rows)


def _size(row: Message) -> int:
    text = row.text if row.sent is None else row.sent
    parts = () if isinstance(row.content, str | None) else row.content
    others = sum(weight(part) for part in parts if kind_of(part))
    return len(text) + sum(len(call.arguments) + len(call.name) for call in row.tool_calls) + others + 20


def newest_request(history: Sequence[Message]) -> int | None:
    """Return the index of the user's newest request; a summary is not one."""
    found = (
        i for i in range(len(history) - 1, -1, -1) if history[i].role == "user" and not history[i].summary
    )
    return next(found, None)


def _after_results(history: Sequence[Message], start: int) -> int:
    while start < len(history) and history[start].role == "tool":
        start += 1
    return start


def _tail_start(history: Sequence[Message], budget: int, least: int, soft_factor: float) -> int:
    """Walk back run by run while the budget lasts."""
    start, size = len(history), 0
    while start > 0:
        begin = _run_start(history, start - 1)
        size += size_of(history[begin:start])
        enough = len(history) - start >= least
        if enough and (size > budget * soft_factor or size - size_of(history[begin:start]) >= budget):
            break
        start = begin
    return start


def _run_start(history: Sequence[Message], index: int) -> int:
    """Return the start of a run: the assistant row whose calls these results answer, or the row itself."""
    while index > 0 and history[index].role == "tool":
        index -= 1
    return index


def _with_visible_answer(history: Sequence[Message], end: int, budget: int, soft_factor: float) -> int:
    """Include the assistant's newest text in the tail, with the request that it answers, if the tail then
    stays within ``soft_factor`` of the budget."""
    spoken = (
        i
        for i in range(len(history) - 1, -1, -1)
        if history[i].role == "assistant" and history[i].text.strip()
    )
    newest = next(spoken, None)
    if newest is None or newest >= end:
        return end
    begin = (
        newest - 1
        if newest > 0 and history[newest - 1].role == "user" and not history[newest - 1].summary
        else newest
    )
    return begin if size_of(history[begin:]) <= budget * soft_factor else end


# Phase 1: shorten old tool rounds whose details no longer matter. Never raises, never calls a model.


LONG_RESULT = 200
"""Characters above which an old result is replaced by a line (COMP-13, COMP-14)."""
LONG_ARGUMENT, KEPT_ARGUMENT = 500, 200
"""Characters above which a string argument of an old call is shortened, and the number that is kept
(COMP-15)."""
KEY_ARGUMENTS = ("path", "file", "command", "url", "query", "content", "name", "pattern")
_EXIT_CODE = re.compile(r"(?i)exit(?:ed with)?(?: code| status)?[: ]+(-?\d+)")
_COUNT = re.compile(r"(?i)\b(\d[\d,]{0,14}) (match(?:es)?|results?|files?|entries|rows?)\b")


def prune(history: Sequence[Message], tail: int) -> list[Message]:
    """Return the history with all but its last ``tail`` rows pruned. Unchanged rows are the same objects."""
    edge = max(0, len(history) - tail)
    calls = {call.id: call for row in history for call in row.tool_calls}
    newest_parts = max(
        (i for i, row in enumerate(history) if row.role == "user" and _has_parts(row)), default=-1
    )
    seen: set[str] = set()
    rows: list[Message] = []
    for index in range(len(history) - 1, -1, -1):
        row = history[index]
        if row.role == "tool":
            row = _tool_row(row, calls, old=index < edge, again=row.text in seen)
            if len(history[index].text) >= LONG_RESULT:
                seen.add(history[index].text)
        elif row.tool_calls and index < edge:
            row = _shorter_calls(row)
        if _has_parts(row) and index < (edge if row.role == "tool" else min(edge, newest_parts)):
            row = partless(row)
        rows.append(row)
    rows.reverse()
    return rows


def _tool_row(row: Message, calls: Mapping[str, ToolCall], *, old: bool, again: bool) -> Message:
    shown = row.text if row.sent is None else row.sent
    if again and len(shown) >= LONG_RESULT:
        return replace(row, sent=f"[{row.name or 'tool'}: the same result is shown again further below]")
    if old and len(shown) > LONG_RESULT:
        return replace(row, sent=outcome_line(row, calls.get(row.tool_call_id or "")))
    return row


def outcome_line(row: Message, call: ToolCall | None) -> str:
    """Describe a result in one line: the tool, its key argument, and the outcome."""
    text = row.text
    facts = [f"{text.count(chr(10)) + 1:,} lines", f"{len(text):,} characters"]
    if code := _EXIT_CODE.search(text):
        facts.insert(0, f"exit code {code.group(1)}")
    elif count := _COUNT.search(text):
        facts.insert(0, count.group(0))
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")[:80]
    named = (call.name if call else row.name) or "tool"
    return f"[{named}({_key_argument(call)}): {', '.join(facts)}; begins: {first!r}]"


def _key_argument(call: ToolCall | None) -> str:
    arguments = _arguments(call) if call else None
    if not arguments:
        return ""
    key = next((key for key in KEY_ARGUMENTS if key in arguments), next(iter(arguments)))
    return f"{key}={str(arguments[key])[:80]!r}"


def _shorter_calls(row: Message) -> Message:
    calls = tuple(shorter_call(call) for call in row.tool_calls)
    return row if calls == row.tool_calls else replace(row, tool_calls=calls)


def shorter_call(call: ToolCall) -> ToolCall:
    """Return the call with long strings in its arguments shortened; if there are none, the same object."""
    arguments = _arguments(call) if len(call.arguments) > LONG_ARGUMENT else None
    if arguments is None:
        return call
    return replace(call, arguments=json.dumps(_shorter(arguments), ensure_ascii=False))


def _shorter(value: Any) -> Any:
    match value:
        case str() if len(value) > LONG_ARGUMENT:
            return f"{value[:KEPT_ARGUMENT]}… [{len(value):,} characters]"
        case dict():
            return {key: _shorter(item) for key, item in value.items()}
        case list():
            return [_shorter(item) for item in value]
    return value


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _has_parts(row: Message) -> bool:
    return not isinstance(row.content, str | None) and any(carrier_of(part) for part in row.content)


def without_parts(history: Sequence[Message]) -> list[Message]:
    """Return the history without images, audio and files, except those of the newest user row that has any:
    for when nothing else can be removed."""
    newest = max((i for i, row in enumerate(history) if row.role == "user" and _has_parts(row)), default=-1)
    return [
        partless(row) if index != newest and _has_parts(row) else row for index, row in enumerate(history)
    ]


def partless(row: Message, *, texts: bool = False) -> Message:
    """Return the row with each image, audio and file replaced by a line that names it; with ``texts``, a file
    whose text is known is replaced by that text."""

    def gone(part: Part) -> str:
        known = text_of_file(part) if texts else ""
        return known or f"[{name_part(part)}: was here, left out to make the conversation shorter]"

    return row.reworded(gone) if _has_parts(row) else row


# The last resort for rows that must stay: their texts and arguments are cut to one length, so that the
# longest lose most.


LEAST = 500
"""Characters below which texts are not cut."""
MARK = 60
"""Characters of the mark in a cut text, without the note."""


def cut_length(rows: Sequence[Message], most: int) -> int | None:
    """Return the length to which the texts of these rows must be cut so that all rows fit into ``most``
    characters; ``None`` if that is too short. Reasoning is sent with its row and cannot be cut."""
    rows = [partless(row, texts=True) for row in rows]
    texts = sorted(len(text) for row in rows for text in _texts(row))
    left = most - size_of(rows) + sum(texts) - sum(map(_thoughts, rows))
    for number, length in enumerate(texts):
        share = left // (len(texts) - number)
        if length > share:
            return share if share >= LEAST else None
        left -= length
    return max(LEAST, texts[-1] if texts else 0) if left >= 0 else None


def cut_row(row: Message, length: int, note: str) -> Message:
    """Return the row as it is sent when texts are limited to ``length``; the stored content stays complete.
    ``note``: where to find it."""
    row = partless(row, texts=True)
    text = sent_text(row)
    calls = tuple(_cut_call(call, length) for call in row.tool_calls)
    sent = row.sent if len(text) <= length else shorten(text, max(100, length - MARK - len(note)), note)
    return replace(row, tool_calls=calls, sent=sent)


def is_longer(row: Message, length: int) -> bool:
    """Return whether the row has a text that will be cut."""
    return any(len(text) > length for text in _texts(partless(row, texts=True)))


def whole(row: Message) -> str:
    """Return the complete text of a row for a file: the content and the calls."""
    text = partless(row, texts=True).text
    return "\n\n".join(
        [*([text] if text else []), *(f"{call.name} {call.arguments}" for call in row.tool_calls)]
    )


def sent_text(row: Message) -> str:
    """Return the text that is sent for a row."""
    return row.text if row.sent is None else row.sent


def _texts(row: Message) -> Iterator[str]:
    yield sent_text(row)
    yield from (call.arguments for call in row.tool_calls)


def _thoughts(row: Message) -> int:
    opaque = [*row.blocks, *(call.extra for call in row.tool_calls if call.extra)]
    return len(row.reasoning or "") + sum(len(json.dumps(dict(one))) for one in opaque)


def _cut_call(call: ToolCall, length: int) -> ToolCall:
    """Shorten a call's arguments, which stay a JSON object: long strings in it are shortened; if that is not
    enough, the object is replaced by its beginning."""
    if len(call.arguments) <= length:
        return call
    shorter = shorter_call(call)
    if len(shorter.arguments) <= length:
        return shorter
    beginning = call.arguments[: length // 2 - MARK]  # escaped, it may take twice as many characters
    cut = {"shortened": f"{beginning}… [{len(call.arguments):,} characters]"}
    return replace(call, arguments=json.dumps(cut, ensure_ascii=False))


# Phase 4: front, summary, rest; in alternating roles, with the summary framed so that no model answers it.


PREFIX = (
    "[A summary of the earlier conversation, for reference only. What was asked in it is settled unless it"
    " says otherwise; answer only the user's messages behind it. Memory stays authoritative, and the tools"
    " stay usable.]\n\n"
)
END = "\n\n[End of the summary]"
BRIDGE = "Understood. I will continue from there."


def summary_row(text: str) -> Message:
    """Return the row of a summary: framed, with keys masked, and marked so that it does not count as a
    message of the user."""
    return Message("user", PREFIX + mask(text) + END, summary=True)


def assemble(division: Division, summary: str, carried: str = "") -> list[Message]:
    """Return the shorter history. ``carried`` is added to the summary (open items of a task list, for
    instance).

    The summary is a row of its own: no live row is rewritten. A bridging row separates two rows of the same
    role."""
    text = "\n\n".join(part for part in (summary.strip(), carried.strip()) if part)
    row = summary_row(text)
    rest = division.kept[len(division.front) :]
    rows = [*division.front]
    if rows and rows[-1].role == "user":
        rows.append(Message("assistant", BRIDGE))
    rows.append(row)
    if rest and rest[0].role == "user":
        rows.append(Message("assistant", BRIDGE))
    return [*rows, *rest]


# How much a compaction protects, and how much less after a provider's refusal.
#
# All of this is computed before a model is paid. A voluntary compaction protects what the settings say. After
# a refusal these plans are tried in order, and the first that fits into the room for the history is used:
#
# 1. what the settings protect; 2. no front rows, and three rows after the summary; 3. only the last reply
# with its results; 4. the same, with texts cut to one length; 5. only the user's newest request, which always
# stays word for word.


SUMMARY_CHARS, LEAST_SUMMARY = 8_000, 1_000
"""Characters that a summary is expected to take at most, and that it may always take."""
FRAME = size_of([Message("user", PREFIX + END), *[Message("assistant", BRIDGE)] * 2])
"""Characters of the rows and frame around a summary."""


@dataclass(frozen=True, slots=True)
class Protection:
    """Limits of what stays: ``front`` rows before the summary, and after it at least ``tail_rows`` rows and
    about ``tail_chars`` characters; a run may exceed that by ``soft_factor``. The last ``unpruned`` rows keep
    their long results."""

    front: int
    tail_rows: int
    tail_chars: int
    unpruned: int
    soft_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``division`` of ``rows``, the pruned history; without a middle nothing is summarized. ``size``:
    characters expected to remain. ``summary``: the limit of the summary in characters, if any. ``cut``: the
    length to which texts of the tail are cut, if they are."""

    rows: tuple[Message, ...]
    division: Division
    size: int
    summary: int | None = None
    cut: int | None = None

    @property
    def expected(self) -> int:
        """Characters that the summary was expected to take."""
        return self.size - size_of(self.division.kept) - FRAME


def plan_compaction(history: Sequence[Message], protection: Protection, goal: int) -> Plan:
    """Plan pruning, and a summary if pruning does not shorten the history to ``goal`` characters."""
    rows = tuple(prune(history, protection.unpruned))
    if size_of(rows) <= goal:
        return Plan(rows, Division(rows, (), None, ()), size_of(rows))
    division = divide(
        rows,
        front=protection.front,
        tail_chars=protection.tail_chars,
        tail_rows=protection.tail_rows,
        soft_factor=protection.soft_factor,
    )
    return Plan(rows, division, size_of(division.kept) + _expected_chars(division))


def plan_insisted(history: Sequence[Message], usual: Protection, goal: int, room: int) -> Plan:
    """Return the plan that protects most within ``room`` characters, else the one that leaves least."""
    last = _last_run(history)
    few = replace(
        usual, front=0, tail_rows=LEAST_TAIL, tail_chars=min(usual.tail_chars, room // 4), unpruned=LEAST_TAIL
    )
    for protection in (usual, few, Protection(front=0, tail_rows=1, tail_chars=0, unpruned=last)):
        plan = plan_compaction(history, protection, min(goal, room))
        if plan.size <= room:
            return _within(plan, room)
    return _cut(plan, room) or _within(plan_compaction(history, Protection(0, 0, 0, unpruned=last), 0), room)


def _cut(plan: Plan, room: int) -> Plan | None:
    """Plan to keep the last reply and cut its texts; ``None`` if the cut texts would be too short, or are the
    user's request."""
    division = plan.division
    if not division.tail or any(row.role == "user" for row in division.tail):
        return None
    summary = min(_expected_chars(division), FRAME + max(LEAST_SUMMARY, room // 3)) if division.middle else 0
    others = room - summary - size_of(division.kept) + size_of(division.tail)
    length = cut_length(division.tail, others)
    return (
        None
        if length is None
        else replace(plan, size=room, summary=summary - FRAME if summary else None, cut=length)
    )


def _within(plan: Plan, room: int) -> Plan:
    """Limit the summary to the room that the kept rows leave."""
    summary = max(LEAST_SUMMARY, room - size_of(plan.division.kept) - FRAME)
    return replace(plan, size=min(plan.size, size_of(plan.division.kept) + FRAME + summary), summary=summary)


def _expected_chars(division: Division) -> int:
    """Return the expected characters of the summary that replaces the middle."""
    if not division.middle:
        return 0
    return FRAME + max(LEAST_SUMMARY, min(SUMMARY_CHARS, size_of(division.middle) // 2))


def _last_run(history: Sequence[Message]) -> int:
    """Return the number of rows of the last reply and its results."""
    return next(
        (number for number, row in enumerate(reversed(history), 1) if row.role != "tool"), len(history)
    )
