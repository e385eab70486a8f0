"""Putting tool calls together from their deltas."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fsm_agent.conversation.messages import ToolCall
from fsm_agent.providers.fields import id_of, mapping_of, text_of
from fsm_agent.providers.reply_limits import ID_CHARACTERS, NAME_CHARACTERS
from fsm_agent.support.texts import clean


@dataclass(slots=True)
class Slot:
    """A call that is still arriving. ``extra`` is a vendor's signature that must be sent back with the
    call."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    extra: Mapping[str, Any] | None = None


class CallSlots:
    """Tool calls by the index of their deltas.

    A new id on an index that is in use opens a new slot: some servers send every call at index 0. A name is
    assigned, not appended: some servers repeat it in every delta. A delta without an index belongs to the
    slot of its id; one with neither continues the last slot, unless it brings a name. ``newest``: (name,
    piece of the arguments) of the last delta."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._open: dict[int, Slot] = {}
        self._by_id: dict[str, Slot] = {}
        self.newest = "", ""

    def __bool__(self) -> bool:
        return bool(self._slots)

    def feed(self, delta: Mapping[str, Any]) -> str | None:
        """Take one delta. Returns the call's name when this delta made it known."""
        call_id, function = id_of(delta.get("id")), mapping_of(delta.get("function"))
        name = text_of(function.get("name"))[:NAME_CHARACTERS]
        slot = self._slot(delta.get("index"), call_id, name)
        slot.id = slot.id or call_id
        self._by_id.setdefault(slot.id, slot)
        known, slot.name = bool(slot.name), name or slot.name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            slot.pieces.append(arguments)
        elif arguments is not None:
            slot.pieces = [json.dumps(arguments, ensure_ascii=False)]
        self.newest = slot.name, "" if arguments is None else slot.pieces[-1]
        if isinstance(extra := delta.get("extra_content"), Mapping):
            slot.extra = extra
        return slot.name if slot.name and not known else None

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls in the order of their first deltas, each with an id that is unique among them."""
        calls = named((slot.id, slot.name, "".join(slot.pieces)) for slot in self._slots)
        return tuple(replace(call, extra=slot.extra) for call, slot in zip(calls, self._slots, strict=True))

    def _slot(self, index: Any, call_id: str, name: str) -> Slot:
        if isinstance(index, int):
            slot = self._open.get(index)
            if slot is None or (call_id and slot.id and call_id != slot.id):
                slot = self._open[index] = self._new()
            return slot
        if call_id:
            return self._by_id.get(call_id) or self._new()
        return self._new() if name or not self._slots else self._slots[-1]

    def _new(self) -> Slot:
        self._slots.append(Slot())
        return self._slots[-1]


def named(calls: Iterable[tuple[str, str, str]]) -> Iterator[ToolCall]:
    """The calls of a reply, each given by its id, name and arguments, with ids that are unique among them. An
    id that is missing, or longer than anybody sends, is made; a name is cut."""
    seen: set[str] = set()
    for index, (given, name, arguments) in enumerate(calls):
        given = clean(given)
        usable = 0 < len(given) <= ID_CHARACTERS and given not in seen
        call_id = given if usable else stable_id(name, arguments, index)
        seen.add(call_id)
        yield ToolCall(call_id, name[:NAME_CHARACTERS], arguments)


def stable_id(name: str, arguments: str, index: int) -> str:
    """The id of a call that came without one: the same reply always gets the same id."""
    return (
        "call_" + hashlib.sha256(f"{index}\0{name}\0{arguments}".encode("utf-8", "replace")).hexdigest()[:24]
    )
