"""Translates between an editor and an agent: prompts to content of a message, stored rows to updates, and
results to stop reasons.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
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
    update_tool_call,
    update_user_message,
)
from acp.interfaces import Client
from acp.schema import (
    AllowedOutcome,
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    PermissionOption,
    PermissionOptionKind,
    ResourceContentBlock,
    StopReason,
    TextContentBlock,
    ToolCallLocation,
    ToolCallUpdate,
    ToolKind,
)

from fsm_agent.approvals.question import visible
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import AudioPart, FilePart, ImagePart, Part, data_of, name_part, parts_of
from fsm_agent.conversation.parts import kind_of as kind_of_part
from fsm_agent.conversation.parts import text_only as said_of
from fsm_agent.conversation.result import ExitReason, TurnResult, words_of_model
from fsm_agent.errors import ConfigError
from fsm_agent.runtime.events import Event
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.support.texts import clean, one_line, shorten
from fsm_agent.toolsets.agent.todo import NAME as TODO

# ----------------------------------------------------------------------------------------------------
# A tool call as an editor shows it: its kind, a title, the files, and its changes.
#
# Editors read titles and texts as Markdown, so foreign text is put in code, which it cannot close.


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
"""Kinds of the built-in tools; every other one is ``other``."""
TELLING = ("command", "path", "pattern", "query", "url", "goal", "question", "code", "name")
"""Arguments that say most about a call; the title shows the first one present."""
LONGEST = 20_000
"""Maximum characters of a result to show; the model's copy is not affected."""
LARGEST = 1_000_000
"""Maximum bytes of a file whose old content is shown before it is replaced."""
_TICKS = re.compile("`+")


def kind_of(name: str) -> ToolKind:
    """Return the protocol's kind of a tool."""
    return KINDS.get(name, "other")


def title_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a one-line title: the tool, and the argument that says most."""
    value = next((arguments[one] for one in TELLING if one in arguments), "")
    words = one_line(visible(value if isinstance(value, str) else repr(value), lines=False), 120)
    tool = one_line(visible(name, lines=False), 80)
    return f"{tool} {inline(words)}" if words else tool


def inline(text: str) -> str:
    """Return a line as inline code in Markdown."""
    ticks = "`" * (_longest(text) + 1)
    return f"{ticks} {text} {ticks}" if text[:1] == "`" or text[-1:] == "`" else f"{ticks}{text}{ticks}"


def code_block(text: str) -> str:
    """Return a text as a code block in Markdown."""
    ticks = "`" * max(3, _longest(text) + 1)
    return f"{ticks}\n{text}\n{ticks}"


def locations_of(arguments: Mapping[str, Any], workdir: Path) -> list[ToolCallLocation]:
    """Return the file or folder that a call is about, with the first line that it reads."""
    path, line = arguments.get("path"), arguments.get("start_line")
    if not isinstance(path, str) or not path:
        return []
    begins = line if isinstance(line, int) and 0 < line < 1_000_000_000 else None
    return [ToolCallLocation(path=clean(str(workdir / path)), line=begins)]


def changes_of(
    name: str, arguments: Mapping[str, Any], workdir: Path, *, begins: bool
) -> list[ToolCallContentVariant]:
    """Return the file change that a call makes. If it ``begins``, the current content of a file that it
    replaces is included."""
    match name, arguments:
        case "patch_file", {"path": str(path), "old_text": str(old), "new_text": str(new)}:
            return [tool_diff_content(clean(str(workdir / path)), clean(new), clean(old))]
        case "write_file", {"path": str(path), "content": str(new)}:
            before = _text_of(workdir, path) if begins else None
            return [tool_diff_content(clean(str(workdir / path)), clean(new), before)]
    return []


def result_of_call(text: str) -> list[ToolCallContentVariant]:
    """Return the result of a call as content."""
    return [tool_content(text_block(code_block(shorten(clean(text), LONGEST))))] if text.strip() else []


def raw(value: Any) -> Any:
    """Return JSON values that every editor can read."""
    return json.loads(clean(json.dumps(value, ensure_ascii=False, default=repr)))


def _text_of(workdir: Path, path: str) -> str | None:
    """Return the text of a file in the working directory; ``None`` if missing or not suitable to show."""
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
"""The protocol's stop reason for each end of a turn. ``None``: it has no reason for it, so the prompt is
answered with an error."""


# Prompts


def content_of(blocks: Blocks) -> Any:
    """Return a prompt as content of a message: text, or parts as JSON values. Raises ``ConfigError`` for a
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
    """Return the path of a file's address; any other address unchanged."""
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
    """Return the arguments of a call; none if they are not a JSON object."""
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


log = logging.getLogger(__name__)

EVENTS = ("stream_delta", "interim_assistant", "reasoning", "status", "event", "tool_start", "tool_complete")
"""The events of a turn that are shown."""
OPTIONS: Mapping[str, tuple[str, PermissionOptionKind]] = {
    "once": ("Allow once", "allow_once"),
    "session": ("Allow for this session", "allow_always"),
    "always": ("Always allow", "allow_always"),
    "deny": ("Deny", "reject_once"),
    "never": ("Never allow", "reject_always"),
}
"""Answers to an approval question, with their labels and the protocol's kinds."""
NEITHER = "none"
"""The option for none of a question's choices."""


class EditorView:
    """The view of one session. ``session_id`` is the editor's name for it. Create it in the event loop of the
    connection."""

    def __init__(self, client: Client, workdir: Path) -> None:
        self.session_id = ""
        self._client, self.workdir = client, workdir
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[SessionUpdate] = asyncio.Queue()
        self._sending = asyncio.ensure_future(self._send())
        self._open: dict[str, str] = {}  # shown calls that have not ended, with their tools
        self._ended: set[str] = set()  # of this turn: a continued turn reports them again
        self._saying, self._said = "", ""  # text since the last boundary, and before it

    # Telling

    def tell(self, update: SessionUpdate) -> None:
        """Send an update after the earlier ones; from any thread."""
        self._loop.call_soon_threadsafe(self._waiting.put_nowait, update)

    async def flush(self) -> None:
        """Wait until all updates have been sent."""
        await asyncio.sleep(0)  # updates of this loop are in the queue then
        await self._waiting.join()

    def close(self) -> None:
        """Send nothing more."""
        self._sending.cancel()

    async def _send(self) -> None:
        while True:
            update = await self._waiting.get()
            try:
                await self._client.session_update(self.session_id, update)
            except Exception as error:  # the connection is gone, or the update cannot be serialized
                log.debug("an update was not sent: %s", error)
            finally:
                self._waiting.task_done()

    def note(self, words: str) -> None:
        """Send a line of ours. The protocol has no type for one, so it is sent as a thought."""
        self.tell(update_agent_thought_text(f"\n· {clean(words)}\n"))

    # Events

    def hear(self, event: Event) -> None:
        """Show an event of a turn if it is meant for people."""
        if event.name in EVENTS:
            getattr(self, event.name)(*event.values)

    def stream_delta(self, text: str | None) -> None:
        """Send a piece of the answer."""
        if text is None:
            self._said, self._saying = self._saying, ""
        elif shown := clean(text) if self._saying else clean(text).lstrip("\n"):
            self._saying += shown
            self.tell(update_agent_message_text(shown))

    def interim_assistant(self, text: str) -> None:
        """Send the text beside calls unless it was streamed."""
        self._rest(text)

    def reasoning(self, text: str) -> None:
        """Send a piece of the model's thoughts."""
        self.tell(update_agent_thought_text(clean(text)))

    def status(self, line: str) -> None:
        """Send a line for people."""
        self.note(line)

    def event(self, name: str, data: Mapping[str, Any]) -> None:
        """Report what delegated tasks do."""
        match name:
            case "child:start":
                self.note(f"task: {data['goal']}")
            case "child:end":
                self.note(f"task {data['status']}" + (f": {data['error']}" if data["error"] else ""))

    def tool_start(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Report that a call runs."""
        if call_id in self._ended:
            return
        if call_id in self._open:
            self.tell(update_tool_call(clean(call_id), status="in_progress"))
        else:
            self._show(call_id, name, arguments, asked=False)

    def tool_complete(
        self, call_id: str, name: str, arguments: Mapping[str, Any], result: str, status: str
    ) -> None:
        """Report how a call ended."""
        if call_id in self._ended:
            return
        if call_id not in self._open:
            self._show(call_id, name, arguments, asked=True)
        well = status == "ok"
        changed = name in ("write_file", "patch_file") and well  # already shown
        content = None if changed else result_of_call(result if well else f"{status}: {result}")
        self._end(call_id, "completed" if well else "failed", content)
        if name == TODO and well and (plan := plan_of(result)) is not None:
            self.tell(plan)

    def finish(self, result: TurnResult) -> None:
        """Send what is still missing of a turn that has ended."""
        for call_id in list(self._open):
            self._end(call_id, "failed", result_of_call("it was not run to its end"))
        self._ended.clear()
        self._rest(words_of_model(result))
        if not result.completed:
            reason = result.turn_exit_reason
            self.note(f"{reason.outcome.value}: {result.error or reason.value.replace('_', ' ')}")

    def _rest(self, text: str) -> None:
        shown, whole = self._said.strip(), clean(text).strip()
        if whole and not shown.endswith(whole):
            rest = whole.removeprefix(shown).strip() if shown else whole
            self.tell(update_agent_message_text(f"\n\n{rest}" if shown else rest))
            self._said = whole

    def _show(self, call_id: str, name: str, arguments: Mapping[str, Any], *, asked: bool) -> None:
        self._open[call_id] = name
        self.tell(
            start_tool_call(
                clean(call_id),
                title_of(name, arguments),
                kind=kind_of(name),
                status="pending" if asked else "in_progress",
                content=changes_of(name, arguments, self.workdir, begins=True),
                locations=locations_of(arguments, self.workdir),
                raw_input=raw(dict(arguments)),
            )
        )

    def _end(self, call_id: str, status: Any, content: Any) -> None:
        self._open.pop(call_id, None)
        self._ended.add(call_id)
        self.tell(update_tool_call(clean(call_id), status=status, content=content))

    # Asking

    async def approve(self, item: Pending, call: ToolCall | None) -> str:
        """Ask whether a call may run, and return the answer; no answer is a refusal. ``call``: as in the
        transcript."""
        name, arguments = item.tool, {} if call is None else arguments_of(call)
        if item.call not in self._open:
            self._show(item.call, name, arguments, asked=True)
        shown = ToolCallUpdate(
            tool_call_id=clean(item.call),
            title=title_of(name, arguments),
            kind=kind_of(name),
            status="pending",
            content=[
                tool_content(text_block(code_block(item.asked))),
                *changes_of(name, arguments, self.workdir, begins=True),
            ],
            locations=locations_of(arguments, self.workdir),
            raw_input=raw(dict(arguments)),
        )
        options = [
            PermissionOption(option_id=one, name=OPTIONS[one][0], kind=OPTIONS[one][1])
            for one in OPTIONS
            if one in item.choices
        ]
        return await self._choice(shown, options) or "deny"

    async def clarify(self, question: str, choices: Sequence[str]) -> str | None:
        """Ask the person to choose, from any loop. Return ``None`` without choices: the protocol has no text
        field."""
        asking = asyncio.run_coroutine_threadsafe(self._clarify(question, choices), self._loop)
        return await asyncio.wrap_future(asking)

    async def _clarify(self, question: str, choices: Sequence[str]) -> str | None:
        if not choices:
            return None
        call_id = next((id for id, name in self._open.items() if name == "clarify"), "clarify")
        shown = ToolCallUpdate(
            tool_call_id=clean(call_id),
            title=inline(visible(question, lines=False)),
            kind="other",
            status="pending",
            content=[tool_content(text_block(code_block(visible(question))))],
        )
        options = [
            PermissionOption(option_id=str(number), name=clean(choice), kind="allow_once")
            for number, choice in enumerate(choices)
        ]
        options.append(PermissionOption(option_id=NEITHER, name="None of these", kind="reject_once"))
        answer = await self._choice(shown, options)
        return None if answer is None or answer == NEITHER else choices[int(answer)]

    async def _choice(self, shown: ToolCallUpdate, options: list[PermissionOption]) -> str | None:
        """Return the option that the person chose; ``None`` if none, or one that was not offered."""
        await self.flush()
        response = await self._client.request_permission(self.session_id, shown, options)
        outcome = response.outcome
        chosen = outcome.option_id if isinstance(outcome, AllowedOutcome) else None
        return chosen if chosen in {option.option_id for option in options} else None
