"""Putting tool calls together from their deltas."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.conversation.messages import ToolCall


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
    slot of its id; one with neither continues the last slot, unless it brings a name."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._open: dict[int, Slot] = {}

    def __bool__(self) -> bool:
        return bool(self._slots)

    def feed(self, delta: Mapping[str, Any]) -> str | None:
        """Take one delta. Returns the call's name when this delta made it known."""
        raw_id = delta.get("id")
        call_id = "" if raw_id is None else str(raw_id)
        function = delta.get("function")
        function = function if isinstance(function, Mapping) else {}
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        slot = self._slot(delta.get("index"), call_id, name)
        slot.id = slot.id or call_id
        known, slot.name = bool(slot.name), name or slot.name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            slot.pieces.append(arguments)
        elif arguments is not None:
            slot.pieces = [json.dumps(arguments, ensure_ascii=False)]
        if isinstance(extra := delta.get("extra_content"), Mapping):
            slot.extra = extra
        return slot.name if slot.name and not known else None

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls in the order of their first deltas, each with an id that is unique among them."""
        calls: list[ToolCall] = []
        seen: set[str] = set()
        for index, slot in enumerate(self._slots):
            arguments = "".join(slot.pieces)
            call_id = slot.id if slot.id and slot.id not in seen else stable_id(slot.name, arguments, index)
            seen.add(call_id)
            calls.append(ToolCall(call_id, slot.name, arguments))
        return tuple(calls)

    def extras(self) -> tuple[Mapping[str, Any], ...]:
        """Vendor fields of the calls, as blocks that name the call they belong to."""
        return tuple(
            {"type": "extra_content", "tool_call_id": call.id, "extra_content": slot.extra}
            for call, slot in zip(self.calls(), self._slots, strict=True)
            if slot.extra is not None
        )

    def _slot(self, index: Any, call_id: str, name: str) -> Slot:
        if isinstance(index, int):
            slot = self._open.get(index)
            if slot is None or (call_id and slot.id and call_id != slot.id):
                slot = self._open[index] = self._new()
            return slot
        if call_id:
            return next((slot for slot in self._slots if slot.id == call_id), None) or self._new()
        return self._new() if name or not self._slots else self._slots[-1]

    def _new(self) -> Slot:
        self._slots.append(Slot())
        return self._slots[-1]


def stable_id(name: str, arguments: str, index: int) -> str:
    """The id of a call that came without one: the same reply always gets the same id."""
    return (
        "call_" + hashlib.sha256(f"{index}\0{name}\0{arguments}".encode("utf-8", "replace")).hexdigest()[:24]
    )
