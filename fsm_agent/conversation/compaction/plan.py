"""What a compaction prunes, where it cuts, what it protects, and how the rest is put together."""

# A refusal makes a compaction protect less. The settings protect as a wish that yields to a refusal: first
# messages, tail, and the texts of the last reply go, in this order and only as needed. The need comes from
# the refusal (its window, or its token count if plausible). A second refusal halves, and the last compaction
# of the call block leaves only prompt, tools, the newest request, and a short summary. All of it is planned
# before a summary is paid for. Cut texts stay whole in the store and in a named file. A wider fallback is
# preferred.

# The newest request follows the summary, word for word. In a long turn the request is at the very front. When
# compaction removes what follows, the request moves behind the summary, because the summary says that only
# what follows it needs an answer.

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

# Phase 2: where to cut. Boundaries fall between runs, so that no call is parted from its result. (Why:
# decision 56.)


LEAST_TAIL = 3
"""Rows that stay behind unless a provider insists on less."""


@dataclass(frozen=True, slots=True)
class Division:
    """``front`` stays before the summary, ``middle`` is what it replaces, ``request`` is the newest user
    request when it would have gone with the middle, ``tail`` stays behind."""

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
    """Cut a history. ``front`` rows are wanted before the summary, ``tail_chars`` characters and at least
    ``tail_rows`` rows behind it; a run that begins inside the budget may exceed it by ``soft_factor``."""
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
    """Characters that go out for these rows, roughly; a part that is no text counts as ``weight`` says."""
    return sum(_size(row) for row in rows)


def _size(row: Message) -> int:
    text = row.text if row.sent is None else row.sent
    parts = () if isinstance(row.content, str | None) else row.content
    others = sum(weight(part) for part in parts if kind_of(part))
    return len(text) + sum(len(call.arguments) + len(call.name) for call in row.tool_calls) + others + 20


def newest_request(history: Sequence[Message]) -> int | None:
    """Its place; a summary is no request of the user's."""
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
    """Back to the assistant row whose calls these results answer; a user row stays with the reply behind
    it."""
    while index > 0 and history[index].role == "tool":
        index -= 1
    return index


def _with_visible_answer(history: Sequence[Message], end: int, budget: int, soft_factor: float) -> int:
    """The newest text that the assistant said stays too, with the request it answers, unless that costs far
    too much."""
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


# Phase 1: what old tool rounds leave behind when their details no longer matter. Never raises, never asks a
# model.


LONG_RESULT = 200
"""Characters above which an old result becomes a line (COMP-13, COMP-14)."""
LONG_ARGUMENT, KEPT_ARGUMENT = 500, 200
"""Characters above which a string argument of an old call is shortened, and what is kept of it (COMP-15)."""
KEY_ARGUMENTS = ("path", "file", "command", "url", "query", "content", "name", "pattern")
_EXIT_CODE = re.compile(r"(?i)exit(?:ed with)?(?: code| status)?[: ]+(-?\d+)")
_COUNT = re.compile(r"(?i)\b(\d[\d,]{0,14}) (match(?:es)?|results?|files?|entries|rows?)\b")


def prune(history: Sequence[Message], tail: int) -> list[Message]:
    """The history with everything but its last ``tail`` rows pruned. Rows that need no change are the same
    objects."""
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
    """One line for a result: the tool, what it was called with, and what came of it."""
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
    """The call with each long string of its arguments shortened, for all others the same object."""
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
    """The history without any image, audio or file but those of the newest user row that has one: what is
    left when nothing else can go."""
    newest = max((i for i, row in enumerate(history) if row.role == "user" and _has_parts(row)), default=-1)
    return [
        partless(row) if index != newest and _has_parts(row) else row for index, row in enumerate(history)
    ]


def partless(row: Message, *, texts: bool = False) -> Message:
    """The row with a line in place of each image, audio and file that names it; with ``texts`` a file whose
    text is known becomes that text."""

    def gone(part: Part) -> str:
        known = text_of_file(part) if texts else ""
        return known or f"[{name_part(part)}: was here, left out to make the conversation shorter]"

    return row.reworded(gone) if _has_parts(row) else row


# The last resort for rows that must stay: their texts and arguments are cut to one length, so that the
# longest lose most.


LEAST = 500
"""Characters below which no text is cut."""
MARK = 60
"""Characters of the mark in a text that was cut, without the note."""


def cut_length(rows: Sequence[Message], most: int) -> int | None:
    """The length to which the texts of these rows have to be cut so that they take ``most`` characters;
    ``None`` when that is too little for all of them. What a model thought goes out with its row and cannot be
    cut."""
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
    """The row as it goes out when no text may be longer; what is stored of its content stays whole. ``note``
    says where."""
    row = partless(row, texts=True)
    text = sent_text(row)
    calls = tuple(_cut_call(call, length) for call in row.tool_calls)
    sent = row.sent if len(text) <= length else shorten(text, max(100, length - MARK - len(note)), note)
    return replace(row, tool_calls=calls, sent=sent)


def is_longer(row: Message, length: int) -> bool:
    """Has the row a text that will be cut?"""
    return any(len(text) > length for text in _texts(partless(row, texts=True)))


def whole(row: Message) -> str:
    """All that a row says, for a file: the content and the calls."""
    text = partless(row, texts=True).text
    return "\n\n".join(
        [*([text] if text else []), *(f"{call.name} {call.arguments}" for call in row.tool_calls)]
    )


def sent_text(row: Message) -> str:
    """The text that goes out for a row."""
    return row.text if row.sent is None else row.sent


def _texts(row: Message) -> Iterator[str]:
    yield sent_text(row)
    yield from (call.arguments for call in row.tool_calls)


def _thoughts(row: Message) -> int:
    opaque = [*row.blocks, *(call.extra for call in row.tool_calls if call.extra)]
    return len(row.reasoning or "") + sum(len(json.dumps(dict(one))) for one in opaque)


def _cut_call(call: ToolCall, length: int) -> ToolCall:
    """Its arguments stay an object of JSON: long strings in it are shortened, else it is replaced by its
    beginning."""
    if len(call.arguments) <= length:
        return call
    shorter = shorter_call(call)
    if len(shorter.arguments) <= length:
        return shorter
    beginning = call.arguments[: length // 2 - MARK]  # as a text in JSON it may take twice as many characters
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
    """Return the row that a summary is: framed as one, its keys masked, and marked so that it counts as no
    message of the user."""
    return Message("user", PREFIX + mask(text) + END, summary=True)


def assemble(division: Division, summary: str, carried: str = "") -> list[Message]:
    """The shorter history. ``carried`` is added behind the summary (open items of a task list, for instance).

    The summary is a row of its own: no live row is rewritten. Where two rows of one role would meet, a
    bridging row is put between them."""
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


# How much a compaction leaves alone, and how much less when the provider has refused what there is.
#
# Everything here is reckoned before a model is paid. A compaction that is only wished for protects what the
# settings say. After a refusal plans are tried in this order, and the first that fits into the room that is
# left for the history is taken:
#
# 1. what the settings protect; 2. no first rows, and three rows behind the summary; 3. only the last
# reply with its results; 4. the same, its texts cut to one length; 5. nothing but the user's newest
# request, which always stays word for word.


SUMMARY_CHARS, LEAST_SUMMARY = 8_000, 1_000
"""What a summary is expected to take at most, and what it may always take."""
FRAME = size_of([Message("user", PREFIX + END), *[Message("assistant", BRIDGE)] * 2])
"""Characters around a summary."""


@dataclass(frozen=True, slots=True)
class Protection:
    """``front`` rows stay before the summary, at least ``tail_rows`` rows and about ``tail_chars`` characters
    behind it, a run of rows up to ``soft_factor`` times as many. The last ``unpruned`` rows keep their long
    results."""

    front: int
    tail_rows: int
    tail_chars: int
    unpruned: int
    soft_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``division`` of ``rows``, the pruned history; without a middle nothing is summarized. ``size``:
    characters expected to remain. ``summary``: the limit of the summary in characters, if there is one.
    ``cut``: the length to which texts of the tail are cut, if they are."""

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
    """Pruning, and a summary when that alone does not get the history down to ``goal`` characters."""
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
    """The plan that protects most and leaves at most ``room`` characters; if none does, the one that leaves
    least."""
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
    """The last reply is kept, its texts are cut; nothing when they would be cut to too little, or are the
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
    """The summary may have what the rows that stay leave of the room."""
    summary = max(LEAST_SUMMARY, room - size_of(plan.division.kept) - FRAME)
    return replace(plan, size=min(plan.size, size_of(plan.division.kept) + FRAME + summary), summary=summary)


def _expected_chars(division: Division) -> int:
    """Characters of the summary that replaces the middle, as far as they can be known before it is made."""
    if not division.middle:
        return 0
    return FRAME + max(LEAST_SUMMARY, min(SUMMARY_CHARS, size_of(division.middle) // 2))


def _last_run(history: Sequence[Message]) -> int:
    """How many rows the last reply and its results are."""
    return next(
        (number for number, row in enumerate(reversed(history), 1) if row.role != "tool"), len(history)
    )
