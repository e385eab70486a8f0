"""Turns in the middle of which a provider answers oddly, over the real SDKs and a real server, and what has to hold
of every one of them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from fsm_agent import Agent, TurnResult
from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.conversation.history import violations
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire import WireCopy, format_of
from fsm_agent.conversation.wire.form import Ask, View
from fsm_agent.providers.reply_values import MOST_TOKENS
from fsm_agent.providers.scripted.replies import Reply, call, text, tools
from fsm_agent.sessions.store import Store
from fsm_agent.support.texts import portable
from fsm_agent.testing import FakeClock
from fsm_agent.testing import server as http
from fsm_agent.testing.server import DIALECTS
from fsm_agent.testing.wires import chat_rows
from tests.helpers.harness import SHOWN, echo
from tests.helpers.odd_replies import EARLIER, Recorded

PATHS = {
    "chat_completions": "/v1/chat/completions",
    "codex_responses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
}
TOLD = (
    "stream_delta", "speech_delta", "reasoning", "tool_gen", "status", "interim_assistant", "tool_start", "tool_complete",
)  # fmt: skip
"""What people and programs hear of a turn while it runs."""
PATIENCE = 60
"""Seconds of real time after which a turn does not end."""


def plain(reply: Reply, wire: str, number: int) -> bytes:
    """A reply as it should be."""
    return http.whole(200, DIALECTS[PATHS[wire]].whole(reply, number), {"connection": "close"})


@dataclass
class OddServer:
    """Answers a first request with a call of a tool, the next ones with what is odd, and then sensibly."""

    wire: str
    odd: list[Recorded]
    bodies: list[bytes] = field(default_factory=list)
    address: str = ""

    @contextlib.asynccontextmanager
    async def open(self) -> Any:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, limit=2**24)
        self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server:
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            if (request := await http.read_request(reader, b"", 0.0)) is not None:
                self.bodies.append(request.raw)
                writer.write(self._response(len(self.bodies)))
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    def _response(self, number: int) -> bytes:
        if number == 1:
            return plain(tools(call("echo", {"text": "seen"}, EARLIER)), self.wire, number)
        if number - 2 < len(self.odd):
            return self.odd[number - 2].response()
        return plain(text("fine"), self.wire, number)


class Records(logging.Handler):
    """Log records that report an unforeseen problem."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.name == "asyncio":
            self.seen.append(self.format(record))


def strict(raw: bytes | str) -> Any:
    """The value of a JSON text, which is what the standard says: no NaN, no text that is not Unicode."""

    def refused(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    value = json.loads(raw, parse_constant=refused)
    json.dumps(value, ensure_ascii=False).encode()
    return value


REASONERS = ("deepseek:deepseek-reasoner", "mistral:magistral-medium")
MODELS = {
    "chat_completions": ("openai:gpt-x", "openrouter:m", "gemini:gemini-3-pro", *REASONERS),
    "anthropic_messages": ("anthropic:claude-sonnet-4-5", REASONERS[0]),
    "codex_responses": ("openai:gpt-5",),
}
"""Of each wire models that take back reasoning in different forms."""


@dataclass(frozen=True)
class Odd:
    """What a turn meets: the model that is asked, and the odd replies, which are all of its wire."""

    model: str
    replies: tuple[Recorded, ...]

    def __init__(self, model: str, *replies: Recorded) -> None:
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "replies", replies)

    @property
    def wire(self) -> Any:
        return self.replies[0].wire


async def faults_of(odd: Odd, home: Path) -> list[str]:
    """What does not hold of a turn with these replies, and of the next turn of its session."""
    faults: list[str] = []
    heard: list[Any] = []
    log, written, session = Records(), io.StringIO(), uuid.uuid4().hex
    callbacks = {name: lambda *values: heard.append(values) for name in TOLD}
    store = Store(home, "full")
    logging.getLogger().addHandler(log)
    try:
        async with OddServer(odd.wire, list(odd.replies)).open() as server:
            with contextlib.redirect_stderr(written), contextlib.redirect_stdout(written):
                agent = Agent(
                    odd.model, base_url=server.address, api_key="k", api_mode=odd.wire, tools=[echo], toolsets=[],
                    home=home, session_id=session, clock=FakeClock(), store=store, callbacks=callbacks,
                    context_window=400_000,
                )  # fmt: skip
                async with asyncio.timeout(PATIENCE):
                    first = await agent.arun("go")
                    server.odd = []
                    second = await agent.arun("and now?")
                await agent.aclose()
            faults += judged(odd.wire, first, second, server.bodies)
    except Exception as error:
        faults.append("".join(traceback.format_exception(error)))
    finally:
        logging.getLogger().removeHandler(log)
        store.close()
    faults += [f"logged: {line}" for line in log.seen]
    faults += [f"printed: {written.getvalue()}"] * bool(written.getvalue())
    faults += [f"told people {value!r:.80}" for value in heard if not portable(value)]
    return faults


@cache
def vendors_type(row: str) -> TypeAdapter[Any]:
    """A row of a request as the vendor of its wire has written it down in the SDK."""
    from anthropic.types import MessageParam
    from openai.types import responses
    from openai.types.chat import ChatCompletionMessageParam

    return TypeAdapter(
        {
            "chat_completions": ChatCompletionMessageParam,
            "anthropic_messages": MessageParam,
            "message": responses.EasyInputMessageParam,
            "reasoning": responses.ResponseReasoningItemParam,
            "web_search_call": responses.ResponseFunctionWebSearchParam,
            "code_interpreter_call": responses.ResponseCodeInterpreterToolCallParam,
            "function_call": responses.ResponseFunctionToolCallParam,
            "function_call_output": responses.response_input_item_param.FunctionCallOutput,
        }[row]
    )


def misshapen(wire: str, body: Any) -> Iterator[str]:
    """What of a request is not of the vendor's types. Of a thought no id is sent, as nothing is stored there; the
    chunks of one vendor's thoughts are not in the types of another, and a phase that the types do not know goes back as
    the word that came."""
    for row in body.get("input") or body["messages"]:
        kind, given = row.get("type", wire), row
        if kind == "reasoning":
            given = {"id": "rs", **{key: value for key, value in row.items() if value is not None}}
        elif isinstance(row.get("phase"), str):
            given = {**row, "phase": None}
        elif wire == "chat_completions" and isinstance(row["content"], list):
            given = {**row, "content": [part for part in row["content"] if part["type"] != "thinking"]}
        try:
            vendors_type(kind).validate_python(given)
        except ValidationError as error:
            yield f"sent {row!s:.200} of another type: {error!s:.400}"


def judged(wire: str, first: TurnResult, second: TurnResult, bodies: list[bytes]) -> Iterator[str]:
    for result in (first, second):
        if sum(bool(result[name]) for name in SHOWN) != 1:
            yield "it has no outcome"
        if result.turn_exit_reason == "local_processing_error":
            yield f"a bug: {result.error}"
        counts = [
            value
            for usage in (result.usage_turn, result.usage_session)
            for value in usage.model_dump().values()
            if isinstance(value, int)
        ]
        if not all(0 <= count <= MOST_TOKENS * 2 * len(bodies) for count in counts):
            yield f"usage: {counts}"
        if result.cleanup_errors or not result.stored:
            yield f"not stored: {result.cleanup_errors}"
        try:
            strict(result.model_dump_json())
            strict(json.dumps(result.messages))
        except ValueError as error:
            yield f"the result: {error}"
    kept = first.messages
    if [row["role"] for row in kept[:3]] != ["user", "assistant", "tool"] or (
        kept[0]["content"],
        kept[2]["content"],
    ) != ("go", "seen"):
        yield f"lost: {kept[:3]}"
    if second.messages[: len(kept)] != kept:
        yield "the next turn has other rows"
    if not second.completed or second.final_response != "fine":
        yield f"the next turn: {second.turn_exit_reason} {second.error} {second.final_response!r:.60}"
    for raw in bodies:
        try:
            body = strict(raw)
        except ValueError as error:
            yield f"sent: {error}"
        else:
            yield from (f"sent: {fault}" for fault in violations(chat_rows(body)))
            yield from misshapen(wire, body)
    rows = [Message.from_dict(row) for row in second.messages]
    for mode in get_args(ApiMode):
        form = format_of(mode)
        runtime = Runtime("any", "any", api_mode=mode)
        pieces = WireCopy().messages("", rows, (), View.of(runtime, frozenset()))
        yield from (
            f"as {mode}: {fault}" for fault in violations(chat_rows(strict(form.body(Ask(runtime), pieces))))
        )
