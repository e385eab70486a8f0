"""Threat: a provider, or a proxy in front of it, answers with too much: bytes, packed bytes, events, calls,
levels, digits. Too much is a failure with one line, never an exception and never a full memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers import reply_values
from fsm_agent.providers.reply_values import messages_usage, responses_usage, usage_from
from fsm_agent.testing import FakeClock, Reply, ScriptedServer, call, text
from fsm_agent.testing import tools as called
from fsm_agent.tools import tool
from fsm_agent_states.logic.detect import detect
from tests.helpers.harness import play
from tests.helpers.ports import KEY, WIRES, Wire

every_wire = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])
LINE = "the reply was given up: it "


class Flooding:
    """A server that answers every request with this head and as much of the body as anybody takes. ``sent``:
    bytes."""

    def __init__(self, head: str, body: Iterator[bytes]) -> None:
        self.head, self.body, self.sent, self.url = head, body, 0, ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {self.head}\r\nconnection: close\r\n\r\n".encode())
        try:
            for piece in self.body:
                writer.write(piece)
                self.sent += len(piece)
                await writer.drain()
            writer.close()
        except ConnectionError:
            pass

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Flooding]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server:
            yield self


def asked(wire: Wire, head: str, body: Iterator[bytes], stream: bool = True) -> tuple[Any, int]:
    async def run() -> tuple[Any, int]:
        async with Flooding(head, body).open() as server, asyncio.timeout(60):
            return await wire.call(server.url, KEY, stream=stream), server.sent

    return asyncio.run(run())


def packed(encoding: str, piece: bytes, times: int) -> Iterator[bytes]:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    for _ in range(times):
        yield squeeze.compress(piece)
    yield squeeze.flush()


def given_up(failure: Any, why: str) -> bool:
    assert isinstance(failure, Failure), failure
    assert failure.message.startswith(LINE)
    assert "\n" not in failure.message
    assert detect(failure).name == "invalid_response"
    return why in failure.message


@pytest.mark.slow
@every_wire
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_small_body_that_unfolds_into_gigabytes_is_given_up(wire: Wire, encoding: str) -> None:
    head = f"200 OK\r\ncontent-encoding: {encoding}\r\ncontent-type: application/json"
    failure, _ = asked(wire, head, packed(encoding, b" " * 1_000_000, 40), stream=False)
    assert given_up(failure, f"more than {reply_values.WHOLE_BYTES:,} bytes")


@every_wire
@pytest.mark.parametrize("encoding", ["br", "zstd", "punycode"])
def test_an_encoding_that_was_not_asked_for_is_not_unpacked(wire: Wire, encoding: str) -> None:
    head = f"200 OK\r\ncontent-encoding: {encoding}\r\ncontent-type: application/json"
    failure, _ = asked(wire, head, iter([b"x"]), stream=False)
    assert given_up(failure, f"{encoding!r}, which was not asked for")


@every_wire
def test_packed_replies_are_read(wire: Wire) -> None:
    body = gzip.compress(json.dumps({"error": {"message": "no such thing"}}).encode())
    head = "404 Not Found\r\ncontent-encoding: gzip\r\ncontent-type: application/json"
    failure, _ = asked(wire, head, iter([body]))
    assert (failure.status, failure.message) == (404, "no such thing")


@every_wire
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "text/plain; charset=punycode"])
def test_of_a_large_error_only_the_beginning_is_read(wire: Wire, kind: str) -> None:
    beginning = b'{"error": {"message": "too many"}} ' if "json" in kind else b"too many "
    body = iter([beginning, *[b"x" * 65_536] * 4_000])
    failure, sent = asked(wire, f"429 Too Many Requests\r\ncontent-type: {kind}", body)
    assert isinstance(failure, Failure)
    assert failure.status == 429
    assert len(failure.message) <= 500
    assert sent < 20_000_000  # of 262 MB: what fits into the buffers of a socket


@every_wire
def test_an_event_without_an_end_is_given_up(wire: Wire) -> None:
    events = iter([b"data: ", *[b"x" * 65_536] * 1_000])
    failure, sent = asked(wire, "200 OK\r\ncontent-type: text/event-stream", events)
    assert given_up(failure, f"an event of more than {reply_values.EVENT_BYTES:,} bytes")
    assert sent < 40_000_000


@every_wire
@pytest.mark.parametrize("nested", ["[" * 500_000, '{"a":' * 100_000, "[" * 500 + "]" * 500, "[]," * 300_000])
@pytest.mark.parametrize("stream", [True, False])
def test_nested_json_is_a_failure(wire: Wire, nested: str, stream: bool) -> None:
    kind = "text/event-stream" if stream else "application/json"
    whole = f'{{"type": "response.created", "choices": {nested}}}'
    body = f"data: {whole}\n\n" if stream else whole
    failure, _ = asked(wire, f"200 OK\r\ncontent-type: {kind}", iter([body.encode()]), stream)
    assert isinstance(failure, Failure)
    found = detect(failure).name
    assert found in ("invalid_response", "transport", "timeout", "server_error"), found
    assert failure.kind != "local"


HUGE = "9" * 4_000
WRONG = ["NaN", "Infinity", "1e300", "-5", '"12"', "[]", "{}", "true", "1.5", HUGE]


@pytest.mark.parametrize("number", WRONG)
def test_a_count_that_cannot_be_true_is_unknown(number: str) -> None:
    wrong = json.loads(number)
    assert usage_from({"prompt_tokens": wrong, "completion_tokens": 3}) is None
    assert messages_usage({"input_tokens": 3, "output_tokens": wrong}) is None
    assert responses_usage({"input_tokens": wrong, "output_tokens": 3}) is None
    cached = {"prompt_tokens_details": {"cached_tokens": wrong}}
    inner = usage_from({"prompt_tokens": 10, "completion_tokens": 3, **cached})
    assert inner is not None
    assert (inner.input, inner.cache_read) == (10, 0)


@pytest.mark.parametrize("number", WRONG[:5])
def test_a_turn_ends_well_whatever_the_counts_are(number: str) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}
    counted = {**body, "usage": {"prompt_tokens": json.loads(number), "completion_tokens": 1}}
    with ScriptedServer([Reply(shape="verbatim", body=counted)]) as server:
        result = Agent("local:any", base_url=server.url, toolsets=[]).run_conversation("hi")
    assert result.final_response == "hello"
    assert result.completed


def test_ids_and_names_of_absurd_length_are_replaced() -> None:
    played = play([called(call("n" * 100_000, {}, id="i" * 100_000)), text("done")], tools=[])
    assert played.result.final_response == "done"
    assert len(played.server.requests[1].raw) < 50_000


@pytest.mark.slow
def test_of_three_thousand_calls_so_many_are_run_as_the_settings_say() -> None:
    ran: list[int] = []

    @tool(effect="pure", concurrency="parallel", approval="never")
    def note(number: int) -> str:
        """Note a number."""
        ran.append(number)
        return "noted"

    calls = [call("note", {"number": number}) for number in range(3_000)]
    played = play([called(*calls), text("done")], tools=[note])
    sent = played.server.bodies[1]["messages"]
    assert played.result.final_response == "done"
    assert sorted(ran) == list(range(128))
    assert len(sent[-129]["tool_calls"]) == 128
    assert "2872 more calls of the same reply were not run" in sent[-1]["content"]
    assert "128" in sent[-1]["content"]


@pytest.mark.parametrize(
    "arguments",
    ["[" * 1_000_000, '{"a":' * 200_000, '{"a":' + "[" * 900 + "]" * 900 + "}", "{" + "[1]," * 250_000],
)
def test_nested_arguments_are_told_to_the_model(arguments: str) -> None:
    @tool(effect="pure", approval="never")
    def take(a: Any) -> str:
        """Take anything."""
        return "taken"

    with ScriptedServer([called(call("take", arguments))] * 4 + [text("done")] * 4) as server:
        agent = Agent("local:any", base_url=server.url, tools=[take], toolsets=[], clock=FakeClock())
        result = agent.run_conversation("go")
    assert result.final_response
    assert "taken" not in json.dumps(result.messages)


def test_a_reply_of_more_than_anybody_means_is_a_failure() -> None:
    reply = ModelReply(text="x" * (reply_values.CHARACTERS + 1), finish="stop")
    failure = reply_values.within_limits(reply)
    assert given_up(failure, "characters")
    small = ModelReply(text="x", finish="stop")
    assert reply_values.within_limits(small) == small
