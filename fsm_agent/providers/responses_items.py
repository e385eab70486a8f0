"""The output items of a reply on the Responses wire."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fsm_agent.conversation.hosted import ITEMS, taken_back
from fsm_agent.conversation.messages import ToolCall
from fsm_agent.providers.fields import mappings_of, text_of
from fsm_agent.providers.tool_calls import named

BREAK = "\n\n"
"""Between two messages of one reply, and between two parts of a summary."""
UNFINISHED = frozenset({"queued", "in_progress", "incomplete"})


@dataclass(slots=True)
class ResponseItem:
    """An output item that is arriving. ``whole`` is it as it was when it was done."""

    kind: str
    name: str = ""
    call_id: str = ""
    item_id: str = ""
    phase: str = ""
    status: str = ""
    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    whole: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """Return the text that came so far."""
        return "".join(self.texts)

    @property
    def is_narration(self) -> bool:
        """Say whether the text is told while the model works, and no answer (FMT-09)."""
        return self.phase == "commentary"


def calls_of(items: Collection[ResponseItem], unfinished: bool) -> Iterator[ToolCall]:
    """The calls, each with an id that is unique among them; those that are not finished only where that is
    the point."""
    finished = [
        item
        for item in items
        if item.kind == "function_call" and (unfinished or item.status not in UNFINISHED)
    ]
    calls = named((item.call_id, item.name, "".join(item.arguments)) for item in finished)
    for call, item in zip(calls, finished, strict=True):
        yield replace(call, item_id=item.item_id)


def blocks_of(items: Collection[ResponseItem], called: bool) -> Iterator[Mapping[str, Any]]:
    """What must be sent back besides the text: encrypted reasoning and what the provider's own tools did,
    verbatim, and the phase that the text was said in."""
    for item in items:
        if item.whole is None:
            continue
        if (
            taken_back(item.whole)
            if item.kind in ITEMS
            else item.kind == "reasoning" and _is_sealed(item.whole)
        ):
            yield item.whole
    phases = [item.phase for item in items if item.kind == "message" and item.texts and item.phase]
    if phases:
        yield {"type": "message", "phase": phases[0 if called else -1]}


def _is_sealed(whole: Mapping[str, Any]) -> bool:
    """Has a thought what the provider takes back? One that it refuses would spoil every later request."""
    summary, content = whole.get("summary"), whole.get("content")
    return (
        bool(text_of(whole.get("encrypted_content")))
        and isinstance(summary, list)
        and len(texts_of(summary, "type")) == len(summary)
        and isinstance(content, list | None)
    )


def texts_of(content: Any, key: str) -> list[str]:
    """The texts of a list of parts that have this field."""
    return [text for part in mappings_of(content) if (text := text_of(part.get(key)))]
