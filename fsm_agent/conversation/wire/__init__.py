"""The bytes of a growing conversation, made once a row.

Theory of operation
-------------------
A turn of 200 iterations sends its conversation 200 times. To write it each time would be quadratic work for
us, and a provider that caches prompts would bill it again, because its cache finds only a request that begins
with the very same bytes. ``WireCopy`` therefore keeps the bytes of everything that can no longer change and
adds what is new. Request N is a byte prefix of request N+1, cache marks apart, and an iteration costs what
was appended in it.

What can still change is the last *run*: the smallest piece of a conversation that is valid by itself, such as
a message with calls and their results, or the user's messages in a row. A ``Format`` says where a run begins
and writes one run as rows; it sees nothing else, so no rule of a vendor can depend on the whole history.

    closed bytes             recent rows                  tail
    finished for good        finished, at most RECENT     the open run, scaffold, hint
    one ``bytearray``        kept as rows as well         made for each request

What holds, and why:

- *Finished bytes never change.* A row is finished when the next run begins. Everything that depends on what
  comes later is behind the messages (the output cap) or in the tail (hint, scaffold), so it alters no byte
  of the prefix. The prompt is a row of its own, written once.
- *The same history object is not read again.* ``_read`` has the messages that were written, and a message
  equals only itself. If the last one read is still in its place, all before it are too: histories grow at the
  end, and code that replaces one says so (``replaced``). Comparing the whole history would be quadratic.
- *Another view is another copy.* Provider, repairs, what the model reads, and cache marks change how rows
  are written, so all of it is made again then. A fallback pays for that once.
- *Marks move over recent rows only.* The last ``MARKS`` rows that can carry a cache mark have one. A row that
  loses its mark must become the bytes that it was without it. That is why the last ``RECENT`` finished rows
  are kept as rows: the closed bytes are cut before the oldest of them and written on from there.
- *Some rows age.* Signed thoughts belong to the tool loop in which they were thought, and of the images that
  tools returned only the newest are sent. ``Aging.outdates`` notices it by looking at what is new, and the
  copy is made again: the prefix breaks where the user speaks, never within a loop of tools.
- *A result needs its call.* ``_called`` has the ids of the open run, and results of other calls are dropped:
  a provider refuses the whole conversation for one of them. ``_ids`` has all ids of finished runs, because a
  format renames a call whose id was used before.

What would break: a format that looks behind its run writes other bytes when the conversation grows, and every
request after it is paid in full. A message changed in place is not written again. A copy of the pieces (a
``join`` too many) costs more than all that is new: 3.4 ms instead of 0.3 ms for a history of 5,000 messages
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

# What rows lose once newer rows are there. Where nothing ages, request N stays a prefix of request N+1 for
# ever.


KEPT_IMAGES = 3
"""Images in tool results that are still sent, the newest ones (FMT-13)."""


@dataclass(frozen=True, slots=True)
class Aging:
    """``outdates``: do the rows from ``start`` on change how rows before them are written? Costs time
    proportional to what is new unless they do. ``aged``: the rows from ``start`` on as they are written
    now."""

    outdates: Callable[[Sequence[Message], int], bool]
    aged: Callable[[Sequence[Message], int], Sequence[Message]]


def _nothing(history: Sequence[Message], start: int) -> bool:
    return False


def _rest(history: Sequence[Message], start: int) -> Sequence[Message]:
    return history[start:]


AGELESS = Aging(_nothing, _rest)


def outdates(history: Sequence[Message], start: int) -> bool:
    """A user's word ends the tool loop whose thoughts were kept; one more image pushes an older one out."""
    new = history[start:]
    if any(_speaks(message) for message in new) and _thoughts_before(history, start):
        return True
    return any(map(_images, new)) and sum(map(_images, history)) > KEPT_IMAGES


def aged(history: Sequence[Message], start: int) -> Sequence[Message]:
    """Thoughts only behind the last word of the user, and only the newest images of tools."""
    rows = list(history[start:])
    spoken, left = False, KEPT_IMAGES
    for index in range(len(rows) - 1, -1, -1):
        message = rows[index]
        if spoken and message.blocks:
            message = replace(message, blocks=without_thoughts(message.blocks))
        if (count := _images(message)) > left:
            message = _without_images(message, count - left)
        left = max(0, left - count)
        rows[index], spoken = message, spoken or _speaks(message)
    return rows


CURRENT_LOOP = Aging(outdates, aged)
"""Signed thoughts belong to the tool loop they were thought in, and old screenshots tell nothing any more."""


def _speaks(message: Message) -> bool:
    return message.role == "user" and message.wire


def _thoughts_before(history: Sequence[Message], start: int) -> bool:
    """Does the tool loop that ends at ``start`` have thoughts?"""
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
    """The message with words in place of its first ``count`` images."""
    old = iter(range(count))
    return message.reworded(
        lambda part: (
            line(part, "not sent again, newer ones are")
            if _is_image(part) and next(old, None) is not None
            else ""
        )
    )


# The API modes that can be written, by name. An agent speaks one of them, and loads that one.


AGING: dict[ApiMode, Aging] = {"anthropic_messages": CURRENT_LOOP}


@functools.cache
def format_of(mode: ApiMode) -> Format:
    """Return how conversations are written in an API mode."""
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
    """Return what rows lose in an API mode once newer ones are there."""
    return AGING.get(mode, AGELESS)


MARKS = 3
"""Rows that carry a cache mark besides the system prompt (CACHE-01: four in all)."""
RECENT = 8
"""Finished rows that are remembered, so that marks can move without reading the history again."""


class WireCopy:
    """One history as one API mode writes it. Safe to use again after the view has changed, and after it was
    told that the history was ``replaced``.

    ``part_bytes``: how much of the bytes written last is images, audio and files beyond what they count
    (``fsm_agent.conversation.parts.weight``)."""

    def __init__(self) -> None:
        self._reset(View(), ())

    def _reset(self, view: View, prefill: Sequence[PrefillRow]) -> None:
        self._view, self._format, self._aging = view, format_of(view.mode), aging_of(view.mode)
        self._prefill = prefill
        self._prompt = ("", "", b"")
        self._closed = bytearray()
        self._finished: list[WireRow] = []  # not among the bytes yet
        self._recent: deque[tuple[int, WireRow]] = deque(maxlen=RECENT)
        self._run: list[Message] = []
        self._made: tuple[int, list[WireRow]] = 0, []  # what the first rows of the run became
        self._called: set[str] = set()  # ids of the calls in the run: results of others are dropped
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
        """The bytes of the message list, brackets included, in pieces that are valid until the history grows.

        Besides the history and the ``scaffold`` behind it: ``ephemeral`` behind the prompt, the rows
        ``prefill`` before the history, and ``hint`` in the last row."""
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
        """The prompt as a row, written once; nothing if there is no prompt or it is not a row."""
        if self._prompt[:2] != (system, ephemeral):
            row = self._format.system_row(system, ephemeral, self._view) if system or ephemeral else None
            self._prompt = (system, ephemeral, b"" if row is None else dump(row))
        return self._prompt[2]

    def replaced(self, history: Sequence[Message]) -> None:
        """The history is another one from now on. What was made of it stays where this one begins with the
        very same rows."""
        if self._read != list(history[: len(self._read)]):  # messages are equal to nothing but themselves
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
        """A conversation begins with the user; one that was cut so that it does not is given a beginning."""
        begun = self._closed or self._finished
        return [Message("user", BRIDGE)] if first.role == "assistant" and not begun else []

    def _open_rows(self) -> list[WireRow]:
        """The run as rows, made once for each message that it got."""
        if self._made[0] != len(self._run):
            self._made = len(self._run), self._format.rows(self._run, self._ids, self._view)
        return self._made[1]

    def _close(self) -> None:
        rows = self._open_rows()
        self._ids |= self._format.ids(rows)
        self._finished += rows

    def _write(self) -> None:
        """Make bytes of the finished rows. All but those that a mark may move to are written as one list: a
        long history costs half as much so."""
        rows, self._finished = self._finished, []
        if many := rows[:-RECENT]:
            self._closed += (b"," if self._closed else b"") + dump(many)[1:-1]
        for row in rows[-RECENT:]:
            self._recent.append((len(self._closed), row))
            self._closed += (b"," if self._closed else b"") + dump(row)
        self._closed_excess += sum(map(excess, rows))

    def _tail(self, scaffold: Sequence[Message], hint: str) -> list[WireRow]:
        """What can still change: the last run of the history, and scaffolding (which carries no calls); a
        hint is added to the last row of all."""
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
        """The finished bytes that stay as they are, and the rows behind them, the last of which carry marks;
        none of the last ``unmarked`` does, which no later request has like this."""
        if not self._view.marks:
            return self._closed, tail
        behind = [*(row for _, row in self._recent), *tail]
        left = MARKS
        for index in range(len(behind) - 1 - unmarked, -1, -1):
            if left and (marked := self._format.marked(behind[index], self._view.ttl)) is not None:
                behind[index], left = marked, left - 1
        offset = self._recent[0][0] if self._recent else len(self._closed)
        return self._closed[:offset], behind
