"""The public fakes: the clock, the scripted model, and the server as any HTTP client sees it; and every
block of docs/testing.md."""

from __future__ import annotations

import asyncio
import gc
import http.client
import inspect
import json
import re
import runpy
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fsm_agent import Agent
from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply, ToolCall, Usage
from fsm_agent.providers.openai_port import OpenAIChat
from fsm_agent.testing import (
    FakeClock,
    Received,
    Reply,
    ScriptedModel,
    ScriptedServer,
    call,
    json_reply,
    malformed_chunk,
    overflow,
    repeat,
    silence,
    slow,
    status,
    strategies,
    text,
    tools,
)
from fsm_agent.testing.invariants import INVARIANTS
from fsm_agent.testing.strategies import KINDS
from tests.helpers.page_blocks import PageBlocks
from tests.helpers.ports import Seen
from tests.helpers.waiting import PATIENCE, until


class Quiet(Seen):
    """A sink that only records the order of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def text(self, delta: str) -> None:
        self.told.append(delta)

    def reasoning(self, delta: str) -> None:
        self.told.append(f"({delta})")

    def tool(self, name: str) -> None:
        self.told.append(f"{name}()")


def asked(stream: bool = True) -> ModelRequest:
    return ModelRequest(json.dumps({"model": "m", "stream": stream}).encode(), stream=stream)


@contextmanager
def connected(server: ScriptedServer) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        yield connection
    finally:
        connection.close()


def post(
    connection: http.client.HTTPConnection, body: Any, path: str = "/v1/chat/completions"
) -> tuple[int, str]:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read().decode()


async def test_the_clock_moves_during_sleeps_and_never_goes_back() -> None:
    clock, order = FakeClock(start=100), list[str]()

    async def note() -> None:
        order.append("other ran")

    other = asyncio.ensure_future(note())
    await clock.sleep(5)
    order.append("slept")
    await other
    assert order == ["other ran", "slept"]
    clock.advance(2.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    assert (clock.now(), clock.sleeps) == (107.5, [5])


ODD_CALLS = call("echo", {"text": "hi"}), call("put", {"n": 1}, id=7), call("x", "", id="")
ALL_REPLIES = [
    *(reply for name, reply in KINDS.items() if isinstance(reply, Reply) and name != "slow"),
    slow("slow", 0.001),
    tools(*ODD_CALLS, text="So", reasoning="hm"),
    status(429, headers={"Retry-After": "3"}),
    status(502, "<html><title>Bad gateway</title></html>"),
    overflow(),
    json_reply({"error": {"message": "bad", "code": "c1"}}),
    json_reply(None),
    malformed_chunk("kept"),
]


@pytest.mark.parametrize("stream", [True, False])
def test_the_scripted_model_answers_as_the_server_does(stream: bool) -> None:
    """One script, over HTTP and without: the same meaning and the same deltas, the wording of errors
    apart."""

    async def play(port: Any) -> list[tuple[Any, list[str]]]:
        results = []
        for _ in ALL_REPLIES:
            sink = Quiet()
            results.append((essence(await port.call(asked(stream), sink)), sink.told))
        await port.aclose()
        return results

    with ScriptedServer(ALL_REPLIES) as server:
        over_http = asyncio.run(play(OpenAIChat(server.url)))
    model = ScriptedModel(ALL_REPLIES)
    assert asyncio.run(play(model)) == over_http
    assert model.served_usage == server.served_usage


def essence(answer: ModelReply | Failure) -> Any:
    if isinstance(answer, ModelReply):
        return answer
    return answer.kind, answer.status, answer.code, answer.retry_after, answer.usage


async def test_the_model_serves_values_and_callables_and_says_when_it_is_used_up() -> None:
    reply = ModelReply("hi", reasoning="hm", tool_calls=(ToolCall("a", "echo", "{}"),))
    failure = Failure("transport", "gone")
    model = ScriptedModel([reply, failure, lambda body: text(body["model"])])
    sink = Quiet()
    answers: list[Any] = [await model.call(asked(), sink) for _ in range(4)]
    model.use_key("k2")
    await model.rebuild()
    await model.aclose()
    assert (answers[:2], answers[2].text, answers[3].kind) == ([reply, failure], "m", "local")
    assert "no reply left" in answers[3].message
    assert sink.told == ["(hm)", "hi", "echo()", "m"]
    assert (model.keys, model.rebuilt, model.closed, len(model.requests)) == (["k2"], 1, True, 4)


async def test_a_silent_model_waits_until_it_is_cancelled() -> None:
    clock = FakeClock()
    model = ScriptedModel([silence(hook=lambda: clock.advance(200)), silence("words")])
    start = clock.now()
    for _ in range(2):
        task = asyncio.ensure_future(model.call(asked(), Quiet()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert clock.now() == start + 200


def test_a_stream_as_the_wire_has_it() -> None:
    with ScriptedServer([text("abcdef", model="m9")]) as server, connected(server) as connection:
        code, body = post(connection, {"stream": True})
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert (code, lines[-1]) == (200, "[DONE]")
    chunks = [json.loads(line) for line in lines[:-1]]
    assert [c["choices"][0]["delta"].get("content") for c in chunks[:-2]] == ["", "ab", "cd", "ef"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert {c["model"] for c in chunks} == {"m9"}


def test_one_connection_serves_many_requests() -> None:
    with ScriptedServer(repeat(text("a"), text("b"))) as server, connected(server) as connection:
        answers = [json.loads(post(connection, {"n": n})[1]) for n in range(5)]
    said = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert said == ["a", "b", "a", "b", "a"]
    assert [body["n"] for body in server.bodies] == [0, 1, 2, 3, 4]
    assert server.served_usage == Usage(50, 25)
    assert json.loads(server.requests[0].raw) == {"n": 0}
    assert server.requests[0].time > 0


def test_models_are_listed_and_not_counted() -> None:
    with ScriptedServer(models=["a", "b"]) as server, connected(server) as connection:
        connection.request("GET", "/v1/models")
        listed = json.loads(connection.getresponse().read())
        assert [row["id"] for row in listed["data"]] == ["a", "b"]
        assert post(connection, {}, "/v1/embeddings")[0] == 404
    assert server.completions == 0


def test_a_script_that_is_used_up_is_noted() -> None:
    with ScriptedServer([text("only")]) as server, connected(server) as connection:
        assert post(connection, {})[0] == 200
        code, body = post(connection, {"extra": True})
    assert code == 500
    assert "used up" in body
    assert [request.body for request in server.overrun] == [{"extra": True}]


def test_a_hook_runs_before_the_answer() -> None:
    seen: list[tuple[int, Any]] = []

    def look(request: Received) -> None:
        seen.append((server.completions, request.body["n"]))

    with ScriptedServer([text("a", on_request=look), lambda request: text(str(request.body["n"]))]) as server:  # noqa: SIM117
        with connected(server) as connection:
            post(connection, {"n": 1})
            assert json.loads(post(connection, {"n": 2})[1])["choices"][0]["message"]["content"] == "2"
    assert seen == [(1, 1)]


@pytest.mark.parametrize(
    "entry", [text("x", on_request=lambda _: 1 / 0), lambda _: 1 / 0, lambda _: "no reply"]
)
def test_a_script_that_raises_is_a_500_and_remembered(entry: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer([entry]) as server, connected(server) as connection:
        assert post(connection, {})[0] == 500
    assert len(server.errors) == 1
    assert capfd.readouterr() == ("", "")


def test_clients_with_their_own_addresses_are_distinguished() -> None:
    with ScriptedServer(repeat(text("hi"))) as server:
        for name in ("one", "two/three"):
            with Agent("openai:m", base_url=server.at(name), api_key="k", toolsets=[]) as agent:
                assert agent.chat("go") == "hi"
    paths = [received.path for received in server.requests]
    assert paths == ["/one/v1/chat/completions", "/two/three/v1/chat/completions"]


def test_a_request_that_was_not_sent_to_its_end_is_known() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n"
    with ScriptedServer([text("never asked for")]) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head + b"half of it")
        until(lambda: bool(server.cut_off))
    (received,) = server.cut_off
    assert (received.raw, received.cut_off, server.completions) == (b"half of it", True, 0)


def test_silence_calls_its_hook_and_sees_the_client_go() -> None:
    clock = FakeClock()
    start = clock.now()
    with ScriptedServer([silence("so far", hook=lambda: clock.advance(500))]) as server:
        with connected(server) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps({"stream": True}))
            response = connection.getresponse()
            assert response.status == 200
            until(lambda: clock.now() > start)
            response.close()
        until(lambda: server.closed_early == 1)
    assert clock.now() == start + 500


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"GET", b""]
)
def test_clients_that_speak_no_http_do_no_harm(raw: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer([text("still here")]) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(raw)
        with connected(server) as connection:
            assert post(connection, {})[0] == 200
    assert capfd.readouterr() == ("", "")


def test_closing_does_not_wait_for_anybody() -> None:
    server = ScriptedServer([silence("connect")]).start()
    with connected(server) as connection:
        connection.request("POST", "/v1/chat/completions", "{}")
        until(lambda: server.completions == 1)
        server.close()
        server.close()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            connection.getresponse()
    assert server.closed_early == 0


def test_no_socket_is_left_of_clients_that_come_while_it_closes() -> None:
    """Python would warn of one, which is an error here."""
    for _ in range(20):
        server = ScriptedServer().start()
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        server.close()
        for client in clients:
            client.close()
    gc.collect()


def test_a_script_is_checked() -> None:
    with pytest.raises(ValueError, match="last entry"):
        ScriptedServer([repeat(text("a")), text("b")])
    with pytest.raises(ValueError, match="at least one"):
        repeat()
    with ScriptedServer(text("one reply is a script")) as server, connected(server) as connection:
        assert post(connection, {})[0] == 200

    assert text("a") == text("a"), "replies are values"
    assert isinstance(slow(tools(call("echo")), 0.1), Reply)
    assert slow(tools(call("echo")), 0.1).delay == 0.1


PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[tuple[int, str]]:
    """The blocks of a language with the line that each begins on."""
    page = PAGE.read_text(encoding="utf-8")
    found = ((page.count("\n", 0, match.start()) + 2, match) for match in BLOCK.finditer(page))
    return [(line, match[2]) for line, match in found if match[1] == kind]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page defines, after all of it was run in an empty folder."""
    blocks = PageBlocks(PAGE, tmp_path_factory.mktemp("work"), commands=False)
    blocks.run()
    return blocks.namespace


def test_every_python_block_runs(page: dict[str, Any]) -> None:
    assert len(blocks("python")) >= 9
    tests = {name for name in page if name.startswith("test_")}
    assert tests == {"test_parcel", "test_every_turn_ends", "test_a_greeting"}


def test_the_tests_on_the_page_pass(page: dict[str, Any], tmp_path: Path) -> None:
    for script in page["SCRIPTS"]:
        page["test_parcel"](script)
    clock = FakeClock()
    scripted_model: Callable[..., ScriptedModel] = lambda *script: ScriptedModel(script, clock=clock)  # noqa: E731
    page["test_a_greeting"](scripted_model, clock, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unittest's loader, not ours
        case = page["TestParcel"]()
    page["TestParcel"].settings = settings(max_examples=10, deadline=None)
    case.runTest()


def test_the_tables_name_everything_there_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "every row is run on the real engine" in text
    for invariant in INVARIANTS:
        assert f"`{invariant.__name__}`" in text
    for name in strategies.__all__:
        if not inspect.isclass(getattr(strategies, name)):
            assert re.search(rf"`{name}\(", text), name
    for link in re.findall(r"\]\(\.\./([\w/.]+)\)", text):
        assert (PAGE.parents[1] / link).exists(), link
    lines = (line[3:] for line in text.splitlines() if line.startswith("## "))
    headings = {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines}
    for anchor in re.findall(r"\]\(#([\w-]+)\)", text):
        assert anchor in headings, anchor


def test_the_example_prints_what_the_page_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["review_loop"])
    runpy.run_path(str(PAGE.parents[1] / "examples" / "review_loop.py"), run_name="__main__")
    printed = capsys.readouterr().out.rstrip()
    console = "\n".join(block for _, block in blocks("console"))
    assert printed in console
