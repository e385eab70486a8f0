"""The bytes of a growing conversation, each row written once.

Theory of operation
-------------------
A turn of 200 iterations sends its conversation 200 times. Writing it from scratch each time would be
quadratic work, and a provider that caches prompts would bill it again, because its cache only matches a
request that begins with the very same bytes. ``WireCopy`` therefore keeps the bytes of everything that can no
longer change and appends new rows. Request N is a byte prefix of request N+1, apart from cache marks, and the
cost of an iteration is proportional to the rows appended in it.

Only the last *run* can still change: the smallest piece of a conversation that is valid by itself, such as a
message with calls and their results, or consecutive messages of the user. A ``Format`` decides where a run
begins and writes one run as rows; it sees nothing else, so no vendor rule can depend on the whole history.

    closed bytes             recent rows                  tail
    finished for good        finished, at most RECENT     the open run, scaffold, hint
    one ``bytearray``        kept as rows as well         made for each request

Invariants, and the reasons for them:

- *Finished bytes never change.* A row is finished when the next run begins. Everything that depends on what
  comes later is after the messages (the output cap) or in the tail (hint, scaffold), so it changes no byte of
  the prefix. The prompt is a row of its own, written once.
- *The same history object is not read again.* ``_read`` holds the messages already written, and messages
  compare by identity. If the last one read is still in its place, so are all before it: histories grow at the
  end, and code that replaces one calls ``replaced``. Comparing the whole history would be quadratic.
- *A new view requires a new copy.* Provider, repairs, the model's inputs, and cache marks change how rows are
  written, so a change of the view rewrites everything. A fallback pays for that once.
- *Marks move over recent rows only.* The last ``MARKS`` rows that can carry a cache mark have one. A row that
  loses its mark must get back its bytes without the mark. That is why the last ``RECENT`` finished rows are
  kept as rows: a request with marks takes the closed bytes up to the oldest of them and rewrites the rest.
- *Some rows age.* Signed thoughts belong to the tool loop in which they were thought, and of the images that
  tools returned only the newest are sent. ``Aging.outdates`` detects this from the new rows, and the copy is
  rewritten. Thoughts break the prefix where the user speaks, never within a tool loop.
- *A result needs its call.* ``_called`` holds the call ids of the open run, and results of other calls are
  dropped: a provider refuses the whole conversation for one of them. ``_ids`` holds all ids of finished runs,
  because a format renames a call whose id was used before.

Pitfalls: a format that looks beyond its run writes different bytes when the conversation grows, and every
later request is paid in full. A message changed in place is not written again. An extra copy of the pieces (a
``join`` too many) costs more than all new rows: 3.4 ms instead of 0.3 ms for a history of 5,000 messages
(``benchmarks/long_history.py``). (Why: decision 5.)
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fsm_agent.conversation.effects import ApiMode
from fsm_agent.conversation.history import BRIDGE, sendable
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import Part, kind_of
from fsm_agent.conversation.vendors import without_thoughts
from fsm_agent.conversation.wire.form import Format, Pieces, View, WireRow, dump, excess, line
from fsm_agent.settings import PrefillRow
from fsm_agent.support import without_collection

# What rows lose once newer rows exist. Where nothing ages, request N stays a prefix of request N+1 forever.


KEPT_IMAGES = 3
"""Images in tool results that are still sent; the newest ones (FMT-13)."""


@dataclass(frozen=True, slots=True)
class Aging:
    """``outdates`` returns whether the rows from ``start`` on change how earlier rows are written. Unless
    they do, it takes time proportional to the new rows. ``aged`` returns the rows from ``start`` on in their
    current form."""

    outdates: Callable[[Sequence[Message], int], bool]
    aged: Callable[[Sequence[Message], int], Sequence[Message]]


def _nothing(history: Sequence[Message], start: int) -> bool:
    return False


def _rest(history: Sequence[Message], start: int) -> Sequence[Message]:
    return history[start:]


AGELESS = Aging(_nothing, _rest)


def outdates(history: Sequence[Message], start: int) -> bool:
    """Return whether the new rows outdate earlier ones: a message of the user ends the tool loop whose
    thoughts were kept, and a new image displaces an older one."""
    new = history[start:]
    if any(_speaks(message) for message in new) and _thoughts_before(history, start):
        return True
    return any(map(_images, new)) and sum(map(_images, history)) > KEPT_IMAGES


def drop_aged(history: Sequence[Message], start: int) -> Sequence[Message]:
    """Keep thoughts only after the user's last message, and only the newest images of tools."""
    rows = list(history[start:])
    replied, left = False, KEPT_IMAGES
    for index in range(len(rows) - 1, -1, -1):
        message = rows[index]
        if replied and message.blocks:
            message = replace(message, blocks=without_thoughts(message.blocks))
        if (count := _images(message)) > left:
            message = _without_images(message, count - left)
        left = max(0, left - count)
        rows[index], replied = message, replied or _speaks(message)
    return rows


CURRENT_LOOP = Aging(outdates, drop_aged)
"""Signed thoughts belong to the tool loop in which they were thought, and old screenshots are useless."""


def _speaks(message: Message) -> bool:
    return message.role == "user" and message.wire


def _thoughts_before(history: Sequence[Message], start: int) -> bool:
    """Return whether the tool loop that ends at ``start`` has thoughts."""
    for index in range(start - 1, -1, -1):
        if _speaks(history[index]):
            return False
        if history[index].blocks:
            return True
    return False


def _images(message: Message) -> int:
    if message.role != "tool" or isinstance(message.content, str | None):
        return 0
    return sum(map(_is_image, message.content))


def _is_image(part: Part) -> bool:
    return kind_of(part) == "image"


def _without_images(message: Message, count: int) -> Message:
    """Return the message with its first ``count`` images replaced by words."""
    old = iter(range(count))
    return message.reworded(
        lambda part: (
            line(part, "not sent again, newer ones are")
            if _is_image(part) and next(old, None) is not None
            else ""
        )
    )


# The formats by API mode. An agent uses one mode, and loads only that one.


AGING: dict[ApiMode, Aging] = {"anthropic_messages": CURRENT_LOOP}


@functools.cache
def format_of(mode: ApiMode) -> Format:
    """Return the format of conversations in an API mode."""
    match mode:
        case "chat_completions":
            from fsm_agent.conversation.wire.openai import ChatFormat

            return ChatFormat()
        case "codex_responses":
            from fsm_agent.conversation.wire.openai import ResponsesFormat

            return ResponsesFormat()
        case "anthropic_messages":
            from fsm_agent.conversation.wire.anthropic import AnthropicFormat

            return AnthropicFormat()


def aging_of(mode: ApiMode) -> Aging:
    """Return the aging rules of an API mode."""
    return AGING.get(mode, AGELESS)


MARKS = 3
"""Rows that carry a cache mark besides the system prompt (CACHE-01: four in all)."""
RECENT = 8
"""Finished rows kept as rows, so that marks can move without reading the history again."""


class WireCopy:
    """The wire form of one history in one API mode. Remains correct after a change of the view, and after
    ``replaced`` has been called for a new history.

    ``part_bytes``: bytes of images, audio and files in the last output beyond their estimated size
    (``fsm_agent.conversation.parts.weight``)."""

    def __init__(self) -> None:
        self._reset(View(), ())

    def _reset(self, view: View, prefill: Sequence[PrefillRow]) -> None:
        self._view, self._format, self._aging = view, format_of(view.mode), aging_of(view.mode)
        self._prefill = prefill
        self._prompt = ("", "", b"")
        self._closed = bytearray()
        self._finished: list[WireRow] = []  # not yet among the bytes
        self._recent: deque[tuple[int, WireRow]] = deque(maxlen=RECENT)
        self._run: list[Message] = []
        self._made: tuple[int, list[WireRow]] = 0, []  # (messages converted, rows made of them)
        self._called: set[str] = set()  # ids of the run's calls: other results are dropped
        self._ids: set[str] = set()
        self._read: list[Message] = []
        self._closed_excess = 0
        self.part_bytes = 0
        for row in prefill:
            self._add(Message(row.role, row.content))

    def messages(
        self,
        system: str,
        history: Sequence[Message],
        scaffold: Sequence[Message],
        view: View,
        *,
        ephemeral: str = "",
        prefill: Sequence[PrefillRow] = (),
        hint: str = "",
    ) -> Pieces:
        """Return the bytes of the message list, brackets included, in pieces that are valid until the history
        grows.

        Besides the history and the ``scaffold`` after it, they contain ``ephemeral`` after the prompt, the
        ``prefill`` rows before the history, and ``hint`` in the last row."""
        self._catch_up(history, view, prefill)
        tail = self._tail(scaffold, hint)
        self.part_bytes = self._closed_excess + sum(map(excess, tail))
        closed, tail = self._split(tail, unmarked=1 if hint else 0)
        prompt = self._prompt_row(system, ephemeral)
        rows: list[bytes | bytearray] = [row for row in (prompt, closed) if row]
        rows += map(dump, tail)
        pieces: list[bytes | bytearray] = [b"["]
        for row in rows:
            pieces += (row, b",")
        return [*pieces[: max(1, len(pieces) - 1)], b"]"]

    def _prompt_row(self, system: str, ephemeral: str) -> bytes:
        """Return the prompt as a row, written once; empty without a prompt, or if the wire has no such
        row."""
        if self._prompt[:2] != (system, ephemeral):
            row = self._format.system_row(system, ephemeral, self._view) if system or ephemeral else None
            self._prompt = (system, ephemeral, b"" if row is None else dump(row))
        return self._prompt[2]

    def replace(self, history: Sequence[Message]) -> None:
        """Switch to another history. The bytes are kept if it begins with the very same rows."""
        if self._read != list(history[: len(self._read)]):  # messages compare by identity
            self._reset(self._view, self._prefill)

    def _catch_up(self, history: Sequence[Message], view: View, prefill: Sequence[PrefillRow]) -> None:
        start = len(self._read)
        same = start <= len(history) and (not start or history[start - 1] is self._read[-1])
        other = view != self._view or prefill != self._prefill
        if other or not same or (start and self._aging.outdates(history, start)):
            self._reset(view, prefill)
        new = history[len(self._read) :]
        with without_collection():
            for message in self._aging.aged(history, len(self._read)):
                self._add(message)
            self._write()
        self._read += new

    def _add(self, message: Message) -> None:
        if not sendable(message) or (message.role == "tool" and message.tool_call_id not in self._called):
            return
        self._run = self._run or self._bridge(message)
        if self._format.opens_run(self._run, message):
            self._close()
            self._run, self._made, self._called = [message], (0, []), set()
        else:
            self._run.append(message)
        if message.tool_calls:
            self._called.update(call.id for call in message.tool_calls)

    def _bridge(self, first: Message) -> list[Message]:
        """Return a first user row if the conversation would begin with the assistant, because its beginning
        was cut."""
        begun = self._closed or self._finished
        return [Message("user", BRIDGE)] if first.role == "assistant" and not begun else []

    def _open_rows(self) -> list[WireRow]:
        """Return the rows of the open run, computed once per message added."""
        if self._made[0] != len(self._run):
            self._made = len(self._run), self._format.rows(self._run, self._ids, self._view)
        return self._made[1]

    def _close(self) -> None:
        rows = self._open_rows()
        self._ids |= self._format.ids(rows)
        self._finished += rows

    def _write(self) -> None:
        """Convert the finished rows to bytes. All except those that a mark may move to are written as one
        list, which halves the cost for a long history."""
        rows, self._finished = self._finished, []
        if many := rows[:-RECENT]:
            self._closed += (b"," if self._closed else b"") + dump(many)[1:-1]
        for row in rows[-RECENT:]:
            self._recent.append((len(self._closed), row))
            self._closed += (b"," if self._closed else b"") + dump(row)
        self._closed_excess += sum(map(excess, rows))

    def _tail(self, scaffold: Sequence[Message], hint: str) -> list[WireRow]:
        """Return the rows that can still change: the last run of the history, and scaffolding (which has no
        calls); a hint is added to the very last row."""
        if not scaffold and not hint:
            return list(self._open_rows())
        runs = [list(self._run) or (self._bridge(scaffold[0]) if scaffold else [])]
        for message in scaffold:
            if self._format.opens_run(runs[-1], message):
                runs.append([message])
            else:
                runs[-1].append(message)
        if hint and runs[-1]:
            runs[-1][-1] = runs[-1][-1].followed_by(hint)
        return [row for run in runs for row in self._format.rows(run, self._ids, self._view)]

    def _split(self, tail: list[WireRow], unmarked: int) -> tuple[bytes | bytearray, list[WireRow]]:
        """Return the finished bytes that stay unchanged, and the rows after them, the last of which carry
        marks. The last ``unmarked`` rows carry none, because no later request repeats them."""
        if not self._view.marks:
            return self._closed, tail
        behind = [*(row for _, row in self._recent), *tail]
        left = MARKS
        for index in range(len(behind) - 1 - unmarked, -1, -1):
            if left and (marked := self._format.mark(behind[index], self._view.ttl)) is not None:
                behind[index], left = marked, left - 1
        offset = self._recent[0][0] if self._recent else len(self._closed)
        return self._closed[:offset], behind
