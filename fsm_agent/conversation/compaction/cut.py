"""The last resort for rows that must stay: their texts and arguments are cut to one length, so that the
longest lose most."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsm_agent.conversation.compaction.divide import size_of
from fsm_agent.conversation.compaction.prune import partless, shorter_call
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.support.texts import shorten

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
    text = shown(row)
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


def shown(row: Message) -> str:
    """The text that goes out for a row."""
    return row.text if row.sent is None else row.sent


def _texts(row: Message) -> Iterator[str]:
    yield shown(row)
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
