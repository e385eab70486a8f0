"""What is said between an editor and an agent: prompts as content of a message, stored rows as updates, and
how a turn ended."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from acp.helpers import (
    SessionUpdate,
    image_block,
    plan_entry,
    start_tool_call,
    text_block,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_user_message,
)
from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    StopReason,
    TextContentBlock,
)

from fsm_agent.acp.calls import changes_of, kind_of, locations_of, raw, result_of_call, title_of
from fsm_agent.agent import Content
from fsm_agent.conversation.exit_reason import ExitReason
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import AudioPart, FilePart, ImagePart, Part, data_of, named
from fsm_agent.conversation.parts import kind_of as kind_of_part
from fsm_agent.conversation.parts import said as said_of
from fsm_agent.errors import ConfigError
from fsm_agent.support.texts import clean
from fsm_agent.toolsets.agent.todo import NAME as TODO

Blocks = Sequence[
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock
    | EmbeddedResourceContentBlock
]  # fmt: skip

STOPS: Mapping[ExitReason, StopReason | None] = {
    ExitReason.TEXT_RESPONSE: "end_turn",
    ExitReason.PRIOR_CONTENT_USED: "end_turn",
    ExitReason.PARTIAL_STREAM_RECOVERY: "end_turn",
    ExitReason.STREAM_DROPPED_TOOL_CALL: "end_turn",
    ExitReason.INVALID_TOOL_CALLS: "end_turn",
    ExitReason.SCRATCHPAD_INCOMPLETE: "end_turn",
    ExitReason.GUARDRAIL_HALT: "end_turn",
    ExitReason.MAX_ITERATIONS_SUMMARY: "max_turn_requests",
    ExitReason.BUDGET_EXHAUSTED: "max_turn_requests",
    ExitReason.ATTEMPT_CAP_REACHED: "max_turn_requests",
    ExitReason.COST_LIMIT: "max_turn_requests",
    ExitReason.TIME_LIMIT: "max_turn_requests",
    ExitReason.TOKEN_LIMIT: "max_tokens",
    ExitReason.HANDED_OVER: "end_turn",
    ExitReason.GUARDRAIL_BLOCKED: "refusal",
    ExitReason.OUTPUT_INVALID: None,
    ExitReason.LENGTH_EXHAUSTED: "max_tokens",
    ExitReason.THINKING_BUDGET_EXHAUSTED: "max_tokens",
    ExitReason.TRUNCATED_TOOL_CALL: "max_tokens",
    ExitReason.RESPONSES_INCOMPLETE: "max_tokens",
    ExitReason.OUTPUT_CAP: "max_tokens",
    ExitReason.CONTENT_POLICY: "refusal",
    ExitReason.INTERRUPTED_BEFORE_CALL: "cancelled",
    ExitReason.INTERRUPTED_IN_CALL: "cancelled",
    ExitReason.INTERRUPTED_IN_BACKOFF: "cancelled",
    ExitReason.INTERRUPTED_IN_TOOLS: "cancelled",
    ExitReason.EMPTY_EXHAUSTED: None,
    ExitReason.OVERFLOW_UNCOMPRESSIBLE: None,
    ExitReason.COMPRESSION_DISABLED: None,
    ExitReason.API_RETRIES_EXHAUSTED: None,
    ExitReason.NON_RETRYABLE_ERROR: None,
    ExitReason.LOCAL_PROCESSING_ERROR: None,
    ExitReason.RUNTIME_CONTEXT_TOO_SMALL: None,
}
"""How an editor is told that a turn ended; ``None``: the protocol has no word for it, so the prompt is
answered with an error."""


# Prompts


def content_of(blocks: Blocks) -> Content:
    """Return a prompt as what ``Agent.start`` takes: text, or parts. Raises ``ConfigError`` for a part that
    cannot be used."""
    parts: list[str | ImagePart | AudioPart | FilePart] = []
    for block in blocks:
        part, last = _part(block), parts[-1] if parts else None
        if isinstance(part, str) and isinstance(last, str):
            parts[-1] = last + part  # a link stands in the middle of a sentence
        else:
            parts.append(part)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _part(block: Any) -> str | ImagePart | AudioPart | FilePart:
    match block:
        case TextContentBlock():
            return block.text
        case ImageContentBlock():
            return ImagePart(f"data:{block.mime_type};base64,{block.data}")
        case AudioContentBlock():
            return AudioPart(f"data:{block.mime_type};base64,{block.data}")
        case ResourceContentBlock():
            return f"[{block.title or block.name}]({_place(block.uri)})"
    resource = block.resource
    if not isinstance(resource, BlobResourceContents):
        return FilePart(resource.text.encode("utf-8", "replace") or b"\n", name=_place(resource.uri))
    try:
        data = base64.b64decode(resource.blob, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("an embedded resource has broken data", resource.uri, "base64") from None
    return FilePart(data, name=_place(resource.uri))


def _place(uri: str) -> str:
    """A path where the address is that of a file."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    return url2pathname(parts.path) if parts.scheme == "file" else uri


# Transcripts


def replayed(rows: Sequence[Message], workdir: Path) -> Iterator[SessionUpdate]:
    """Yield a transcript as updates, oldest first, and its plan at the end. Nothing is read from the disk."""
    results = {row.tool_call_id: row for row in rows if row.role == "tool"}
    plan: SessionUpdate | None = None
    for row in rows:
        if row.role == "user" and row.summary:
            yield update_agent_thought_text(clean(row.text))
        elif row.role == "user":
            content = [{"type": "text", "text": row.content}] if isinstance(row.content, str) else row.content
            for part in content or ():
                yield update_user_message(_shown(part))
        elif row.role == "assistant":
            if row.reasoning:
                yield update_agent_thought_text(clean(row.reasoning))
            if row.text.strip():
                yield update_agent_message_text(clean(row.text))
            for call in row.tool_calls:
                result = results.get(call.id)
                yield _replayed_call(call, None if result is None else said_of(result.content), workdir)
                if call.name == TODO and result is not None:
                    plan = plan_of(said_of(result.content)) or plan
    if plan is not None:
        yield plan


def _shown(part: Part) -> Any:
    media_type, data = data_of(part)
    if kind_of_part(part) == "image" and data:
        return image_block(data, media_type)
    return text_block(clean(named(part) if kind_of_part(part) else str(part.get("text") or "")))


def _replayed_call(call: ToolCall, result: str | None, workdir: Path) -> SessionUpdate:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    arguments = arguments if isinstance(arguments, dict) else {}
    content = changes_of(call.name, arguments, workdir, begins=False)
    return start_tool_call(
        clean(call.id),
        title_of(call.name, arguments),
        kind=kind_of(call.name),
        status="failed" if result is None else "completed",
        content=content or result_of_call(result or ""),
        locations=locations_of(arguments, workdir),
        raw_input=raw(arguments),
    )


def plan_of(result: str) -> SessionUpdate | None:
    """Return the list of things to do that the tool ``todo`` gave back; ``None`` when it is none. What was
    cancelled is left out: the protocol has no word for it."""
    try:
        items = json.loads(result)["todos"]
        return update_plan(
            plan_entry(clean(one["content"]), status=one["status"])
            for one in items
            if one["status"] != "cancelled"
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
