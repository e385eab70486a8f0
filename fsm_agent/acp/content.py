"""What is said between an editor and an agent: prompts as content of a message, stored rows as updates, and
how a turn ended.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from acp.helpers import (
    SessionUpdate,
    ToolCallContentVariant,
    image_block,
    plan_entry,
    start_tool_call,
    text_block,
    tool_content,
    tool_diff_content,
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
    ToolCallLocation,
    ToolKind,
)

from fsm_agent.approvals.question import visible
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import AudioPart, FilePart, ImagePart, Part, data_of, name_part, parts_of
from fsm_agent.conversation.parts import kind_of as kind_of_part
from fsm_agent.conversation.parts import text_only as said_of
from fsm_agent.conversation.result import ExitReason
from fsm_agent.errors import ConfigError
from fsm_agent.support.texts import clean, one_line, shorten
from fsm_agent.toolsets.agent.todo import NAME as TODO

# ----------------------------------------------------------------------------------------------------
# What an editor is shown of a tool call: its kind, a title, the files, and what it changes.
#
# Editors read titles and texts as Markdown, so foreign text is put in code, from which nothing
# leads out.


KINDS: Mapping[str, ToolKind] = {
    "list_directory": "read", "read_file": "read", "skill_view": "read", "ask_image": "read",
    "search_files": "search", "session_search": "search", "look_back": "search", "tool_search": "search",
    "write_file": "edit", "patch_file": "edit", "skill_manage": "edit", "memory": "edit",
    "terminal": "execute", "execute_code": "execute", "job_start": "execute", "job_list": "execute",
    "job_output": "execute", "job_wait": "execute", "job_stop": "execute",
    "web_fetch": "fetch", "ask_page": "fetch",
    "todo": "think", "delegate_task": "think",
    "clarify": "other", "tool_call": "other", "get_time": "other", "calculate": "other",
}  # fmt: skip
"""Of the built-in tools; every other one is ``other``."""
TELLING = ("command", "path", "pattern", "query", "url", "goal", "question", "code", "name")
"""Arguments that say most about a call; the first that is there is in its title."""
LONGEST = 20_000
"""Characters of a result that are shown; the model gets what it always gets."""
LARGEST = 1_000_000
"""Bytes of a file that an editor is shown the whole of, as it was before it is replaced."""
_TICKS = re.compile("`+")


def kind_of(name: str) -> ToolKind:
    """Return which of the protocol's kinds a tool is of."""
    return KINDS.get(name, "other")


def title_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Return one line: the tool, and what it is called with."""
    told = next((arguments[one] for one in TELLING if one in arguments), "")
    words = one_line(visible(told if isinstance(told, str) else repr(told), lines=False), 120)
    tool = one_line(visible(name, lines=False), 80)
    return f"{tool} {inline(words)}" if words else tool


def inline(text: str) -> str:
    """Return a line as code in Markdown."""
    ticks = "`" * (_longest(text) + 1)
    return f"{ticks} {text} {ticks}" if text[:1] == "`" or text[-1:] == "`" else f"{ticks}{text}{ticks}"


def code_block(text: str) -> str:
    """Return a text as a block of code in Markdown."""
    ticks = "`" * max(3, _longest(text) + 1)
    return f"{ticks}\n{text}\n{ticks}"


def locations_of(arguments: Mapping[str, Any], workdir: Path) -> list[ToolCallLocation]:
    """Return the file or folder that a call is about, with the line that it reads from."""
    path, line = arguments.get("path"), arguments.get("start_line")
    if not isinstance(path, str) or not path:
        return []
    begins = line if isinstance(line, int) and 0 < line < 1_000_000_000 else None
    return [ToolCallLocation(path=clean(str(workdir / path)), line=begins)]


def changes_of(
    name: str, arguments: Mapping[str, Any], workdir: Path, *, begins: bool
) -> list[ToolCallContentVariant]:
    """Return the change of a file that a call makes. When it ``begins``, a file that it replaces is read as
    it is now."""
    match name, arguments:
        case "patch_file", {"path": str(path), "old_text": str(old), "new_text": str(new)}:
            return [tool_diff_content(clean(str(workdir / path)), clean(new), clean(old))]
        case "write_file", {"path": str(path), "content": str(new)}:
            before = _text_of(workdir, path) if begins else None
            return [tool_diff_content(clean(str(workdir / path)), clean(new), before)]
    return []


def result_of_call(text: str) -> list[ToolCallContentVariant]:
    """Return what a call brought."""
    return [tool_content(text_block(code_block(shorten(clean(text), LONGEST))))] if text.strip() else []


def raw(value: Any) -> Any:
    """Return JSON values that every editor can read."""
    return json.loads(clean(json.dumps(value, ensure_ascii=False, default=repr)))


def _text_of(workdir: Path, path: str) -> str | None:
    """The text of a file in the working directory; ``None`` if it does not exist or cannot be shown."""
    try:
        root, real = workdir.resolve(), (workdir / path).resolve()
        if not real.is_relative_to(root) or not real.is_file() or real.stat().st_size > LARGEST:
            return None
        return clean(real.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _longest(text: str) -> int:
    return max(map(len, _TICKS.findall(text)), default=0)


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
"""The protocol's word for the end of a turn; ``None``: the protocol has no word for it, so the prompt is
answered with an error."""


# Prompts


def content_of(blocks: Blocks) -> Any:
    """Return a prompt as what a turn is given: text, or parts as JSON values. Raises ``ConfigError`` for a
    part that cannot be used."""
    parts: list[str | ImagePart | AudioPart | FilePart] = []
    for block in blocks:
        part, last = _part(block), parts[-1] if parts else None
        if isinstance(part, str) and isinstance(last, str):
            parts[-1] = last + part  # a link in the middle of a sentence
        else:
            parts.append(part)
    return parts_of(parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts)


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


def replay_updates(rows: Sequence[Message], workdir: Path) -> Iterator[SessionUpdate]:
    """Yield a transcript as updates, oldest first, and its plan at the end. Nothing is read from the disk."""
    results = {row.tool_call_id: row for row in rows if row.role == "tool"}
    plan: SessionUpdate | None = None
    for row in rows:
        if row.role == "user" and row.summary:
            yield update_agent_thought_text(clean(row.text))
        elif row.role == "user":
            content = [{"type": "text", "text": row.content}] if isinstance(row.content, str) else row.content
            for part in content or ():
                yield update_user_message(_content_of(part))
        elif row.role == "assistant":
            if row.reasoning:
                yield update_agent_thought_text(clean(row.reasoning))
            if row.text.strip():
                yield update_agent_message_text(clean(row.text))
            for call in row.tool_calls:
                result = results.get(call.id)
                yield _call_update(call, None if result is None else said_of(result.content), workdir)
                if call.name == TODO and result is not None:
                    plan = plan_of(said_of(result.content)) or plan
    if plan is not None:
        yield plan


def _content_of(part: Part) -> Any:
    media_type, data = data_of(part)
    if kind_of_part(part) == "image" and data:
        return image_block(data, media_type)
    return text_block(clean(name_part(part) if kind_of_part(part) else str(part.get("text") or "")))


def _call_update(call: ToolCall, result: str | None, workdir: Path) -> SessionUpdate:
    arguments = arguments_of(call)
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


def arguments_of(call: ToolCall) -> Mapping[str, Any]:
    """Return the arguments of a call; none where they are no JSON object."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def plan_of(result: str) -> SessionUpdate | None:
    """Return the list that the tool ``todo`` returned, or ``None`` if it is not a list. Canceled entries
    are left out: the protocol has no status for them."""
    try:
        items = json.loads(result)["todos"]
        return update_plan(
            plan_entry(clean(one["content"]), status=one["status"])
            for one in items
            if one["status"] != "cancelled"
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
