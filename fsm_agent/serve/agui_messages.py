"""Converts messages, interrupts and answers between AG-UI and the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ag_ui.core import (
    AssistantMessage,
    FunctionCall,
    Interrupt,
    Message,
    ResumeEntry,
    RunAgentInput,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pydantic import ValidationError

from fsm_agent.conversation.parts import text_only
from fsm_agent.dispatch.service import BadRequest
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.support.texts import one_line

Row = Mapping[str, Any]
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "approval": {"approved": {"type": "boolean"}},
    "question": {"answer": {"type": "string"}},
}
"""JSON schema properties of the answer to an interrupt, by kind of pending item."""
REASONS = {"question": "input_required", "result": "fsm_agent:result", "timer": "fsm_agent:timer"}


def read_input(body: Mapping[str, Any]) -> RunAgentInput:
    """Read the input of a run. Raises ``BadRequest``."""
    try:
        given = RunAgentInput.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the input"
        raise BadRequest(one_line(f"{where}: {first['msg']}", 200)) from None
    if given.tools:
        names = ", ".join(one.name for one in given.tools)
        raise BadRequest(one_line(f"tools of the client are not supported: {names}", 200))
    return given


# From rows of a session


def messages_of(rows: Sequence[Row], thread: str) -> list[Message]:
    """Return the messages of a session, without system rows."""
    found: list[Message] = []
    for number, row in enumerate(rows):
        name, content = f"{thread}-{number}", row.get("content")
        match row.get("role"):
            case "user":
                found.append(UserMessage(id=name, content=text_only(content)))
            case "assistant":
                calls = [
                    ToolCall(
                        id=call["id"],
                        function=FunctionCall(
                            name=call["function"]["name"], arguments=call["function"]["arguments"]
                        ),
                    )
                    for call in row.get("tool_calls") or ()
                ]
                text = text_only(content) if content else None
                found.append(AssistantMessage(id=name, content=text, tool_calls=calls or None))
            case "tool":
                call_id = str(row.get("tool_call_id", ""))
                found.append(ToolMessage(id=name, content=text_only(content), tool_call_id=call_id))
    return found


def rows_before(rows: Sequence[Row], asked: str) -> Sequence[Row]:
    """Return the rows up to the user's message that began the turn, or up to the last one if none matches."""
    users = [number for number, row in enumerate(rows) if row.get("role") == "user"]
    for number in reversed(users):
        if text_only(rows[number].get("content")).strip().startswith(asked.strip()[:40]):
            return rows[: number + 1]
    return rows[: users[-1] + 1] if users else rows


def arguments_of_call(rows: Sequence[Row], call_id: str) -> str:
    """Return the arguments of the last call with this id, as the model wrote them."""
    for row in reversed(rows):
        for call in row.get("tool_calls") or ():
            if call["id"] == call_id:
                return str(call["function"]["arguments"])
    return "{}"


# To rows


def rows_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a client's messages as rows of a history, without instructions, activities and reasoning."""
    rows: list[dict[str, Any]] = []
    for one in messages:
        match one:
            case UserMessage():
                rows.append({"role": "user", "content": content_of(one)})
            case AssistantMessage():
                row: dict[str, Any] = {"role": "assistant", "content": one.content}
                if one.tool_calls:
                    row["tool_calls"] = [
                        {
                            "id": call.id,
                            "type": "function",
                            "function": {"name": call.function.name, "arguments": call.function.arguments},
                        }
                        for call in one.tool_calls
                    ]
                rows.append(row)
            case ToolMessage():
                content = [*_parts(one.content)] if isinstance(one.content, list) else one.content
                rows.append({"role": "tool", "content": content, "tool_call_id": one.tool_call_id})
    return rows


def content_of(message: UserMessage) -> Any:
    """Return the content of a user's message: text, or content parts. Raises ``BadRequest``."""
    return message.content if isinstance(message.content, str) else [*_parts(message.content)]


def _parts(parts: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if part.type == "text":
            yield {"type": "text", "text": part.text}
            continue
        source = part.source
        if source.type == "file" or part.type == "video":
            raise BadRequest(f"a part of type {part.type} as {source.type} cannot be used")
        url = source.value if source.type == "url" else f"data:{source.mime_type};base64,{source.value}"
        if part.type == "image":
            yield {"type": "image_url", "image_url": {"url": url}}
        elif part.type == "audio" and source.type == "data":
            kind = source.mime_type.partition("/")[2].removeprefix("x-").replace("mpeg", "mp3")
            yield {"type": "input_audio", "input_audio": {"data": source.value, "format": kind}}
        else:
            yield {"type": "file", "file": {"file_data": url, "filename": "document"}}


def instructions_of(given: RunAgentInput) -> str:
    """Return what the client's application adds to the conversation: instructions, and its context."""
    texts = [one.content for one in given.messages if one.role in ("system", "developer")]
    texts += [f"{one.description}: {one.value}" for one in given.context or ()]
    return "\n\n".join(texts)


def unseen(messages: Sequence[Message], rows: Sequence[Row]) -> tuple[list[Message], bool]:
    """Return the messages that a session lacks, starting with one of the user's, and whether the client has
    those before them. Empty if the last message is not the user's."""
    spoken: list[Message] = [
        one for one in messages if isinstance(one, UserMessage | AssistantMessage | ToolMessage)
    ]
    if not spoken or not isinstance(spoken[-1], UserMessage):
        return [], False
    stored = [text_only(row.get("content")).strip() for row in rows if row.get("role") == "user"]
    users = [number for number, one in enumerate(spoken) if isinstance(one, UserMessage)]
    asked = [text_only(rows_of([spoken[number]])[0]["content"]).strip() for number in users]
    if len(users) > len(stored) and asked[: len(stored)] == stored:
        return spoken[users[len(stored)] if stored else 0 :], True
    return spoken[-1:], False


# Interrupts


def interrupt_of(item: Pending, call: str | None, child: str | None) -> Interrupt:
    """Return a pending item as an interrupt. ``call``: the id of the call as the client knows it; ``child``:
    the subagent that asks."""
    reason = REASONS.get(item.kind, "tool_call" if call else "confirmation")
    schema: dict[str, Any] | None = None
    if (properties := SCHEMAS.get(item.kind)) is not None:
        schema = {"type": "object", "properties": {**properties}, "required": [*properties]}
        if item.choices:
            schema["properties"]["choice"] = {"type": "string", "enum": [*item.choices]}
    return Interrupt(
        id=item.id, reason=reason, message=item.asked or item.what, tool_call_id=call, response_schema=schema,
        subagent_run_id=child,
        metadata={"fsm_agent": {"kind": item.kind, "tool": item.tool, "choices": [*item.choices]}},
    )  # fmt: skip


def answer_of(entry: ResumeEntry, kind: str) -> Any:
    """Return the value of a client's answer. Raises ``BadRequest`` if the entry is not an answer."""
    given = entry.payload
    if entry.status == "cancelled":
        if kind == "approval":
            return "deny"
        raise BadRequest(f"{entry.interrupt_id} cannot be cancelled: interrupt its turn")
    if isinstance(given, Mapping) and kind in SCHEMAS:
        if "editedArgs" in given:
            raise BadRequest("editedArgs are not supported: what was asked about runs unchanged")
        (name,) = SCHEMAS[kind]
        given = given.get("choice", given.get(name))
    if kind == "approval" and not isinstance(given, bool | str):
        raise BadRequest(f'{entry.interrupt_id} is answered by {{"approved": true}} or {{"approved": false}}')
    if kind == "question" and not isinstance(given, str | int):
        raise BadRequest(f'{entry.interrupt_id} is answered by {{"answer": "some words"}}')
    return given
