"""Connections: what is not an editor is turned away, and one editor is served."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.dap import LaunchOptions, serve_port, serve_stdio
from fsm_agent.debug.dap.protocol import LARGEST, Client, NotTheProtocol, read_message, write_message
from fsm_agent.errors import ConfigError
from fsm_agent.testing import text
from tests.helpers.dap_editor import Editor, workshop_of
from tests.helpers.dap_schema import check
from tests.helpers.processes import environment, ran
from tests.helpers.waiting import PATIENCE


def never(options: LaunchOptions) -> DebugSession:
    raise AssertionError("no workshop of its own was to be asked for")


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


# Framing


def test_messages_are_read_as_they_were_written() -> None:
    stream = io.BytesIO()
    for message in ({"a": "ü → 😀"}, {}):
        write_message(stream, message)
    stream.seek(0)
    assert [read_message(stream), read_message(stream), read_message(stream)] == [{"a": "ü → 😀"}, {}, None]


def test_a_message_may_come_in_pieces_and_have_a_type() -> None:
    class Drop(io.RawIOBase):
        """One byte at a time."""

        def __init__(self, data: bytes) -> None:
            self._left = data

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray) -> int:
            piece, self._left = self._left[:1], self._left[1:]
            buffer[: len(piece)] = piece
            return len(piece)

    assert read_message(
        Drop(b"content-length: 7\r\nContent-Type: application/json\r\n\r\n" + b'{"a":1}')
    ) == {"a": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}", b"GET / HTTP/1.1\r\n\r\n",
        b"Content-Length: 2\r\nOrigin: http://evil.example\r\n\r\n{}", b"Content-Length: -2\r\n\r\n{}",
        b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", b"Content-Length: %d\r\n\r\n" % (LARGEST + 1),
        b"Content-Length: 99\r\n\r\n{}", b"Content-Length: " + b"9" * 400, b"\r\n{}", b"Content-Length: 2",
        framed(b"[]"), framed(b"nonsense"), framed(b"\xff\xfe"), framed(b"[" * 200_000),
    ],
)  # fmt: skip
def test_anything_else_is_not_the_protocol(data: bytes) -> None:
    with pytest.raises(NotTheProtocol):
        read_message(io.BytesIO(data))


# A port


@contextmanager
def listening(workshop: DebugSession) -> Iterator[tuple[int, str]]:
    """(the port, the token)."""
    ready: list[tuple[int, str]] = []
    there, codes = threading.Event(), list[int]()

    def tell(where: str, token: str) -> None:
        ready.append((int(where.rpartition(":")[2]), token))
        there.set()

    server = threading.Thread(
        target=lambda: codes.append(serve_port(workshop, None, never, 0, ready=tell)), daemon=True
    )
    server.start()
    assert there.wait(PATIENCE)
    try:
        yield ready[0]
        server.join(PATIENCE)
        assert codes == [0]
    finally:
        workshop.close()


@contextmanager
def editor(port: int) -> Iterator[Editor]:
    ours = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    with ours, ours.makefile("rb", 0) as reading, ours.makefile("wb") as writing:
        yield Editor(reading, writing)
        ours.shutdown(socket.SHUT_RDWR)


def heard(connection: socket.socket) -> bytes:
    """What was said before the connection was closed, or cut off."""
    try:
        return connection.recv(1000)
    except ConnectionResetError:
        return b""


def test_a_browser_is_turned_away_and_one_editor_is_served(tmp_path: Path) -> None:
    with listening(workshop_of(tmp_path, [text("hello")])) as (port, token):
        launch = framed(b'{"seq":1,"type":"request","command":"launch","arguments":{"task":"go"}}')
        for said in (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n" + launch, launch, b""):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as other:
                with contextlib.suppress(OSError):  # it may be closed by then
                    other.sendall(said)
                    other.shutdown(socket.SHUT_WR)
                assert heard(other) == b""  # not a word
        with editor(port) as one:
            one.begin(task="go", stopOnEntry=True, token=token)
            one.stopped()
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as two,
            ):
                assert two.recv(1) == b""
            one.ends()
            one.ask("disconnect")


def test_only_this_machine_is_listened_to(tmp_path: Path) -> None:
    with listening(workshop_of(tmp_path, [text("hello")])) as (port, token):
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", port))  # would be taken if it listened on every address
        with editor(port) as one:
            one.begin(task="go", token=token)
            one.ask("disconnect")


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_cannot_be(tmp_path: Path, port: int) -> None:
    with pytest.raises(ConfigError, match="port cannot be used"):
        serve_port(workshop_of(tmp_path, []), None, never, port)


# Standard input and output


def run(said: bytes, home: Path) -> subprocess.CompletedProcess[Any]:
    options = {"input": said, "text": False, "env": environment(FSM_AGENT_HOME=str(home), PYTHONSAFEPATH="1")}
    return ran("-m", "fsm_agent", "debug", "--stdio", **options)


@pytest.mark.slow
def test_the_command_speaks_nothing_but_the_protocol(tmp_path: Path) -> None:
    requests = [
        ("initialize", {"adapterID": "x"}),
        ("launch", {"task": "What is 6 times 7?", "model": "offline:demo", "cwd": str(tmp_path)}),
        ("configurationDone", {}),
        ("disconnect", {"terminateDebuggee": True}),
    ]
    messages: list[Any] = [
        {"seq": seq, "type": "request", "command": command, "arguments": arguments}
        for seq, (command, arguments) in enumerate(requests, 1)
    ]
    said = b"".join(framed(json.dumps(message).encode()) for message in messages)
    done = run(said, tmp_path)
    assert done.returncode == 0, done.stderr
    stream, messages = io.BytesIO(done.stdout), []
    while (message := read_message(stream)) is not None:
        check(message)
        messages.append(message)
    answers = {one["command"]: one["success"] for one in messages if one["type"] == "response"}
    assert answers == {"initialize": True, "launch": True, "configurationDone": True, "disconnect": True}


@pytest.mark.slow
def test_wrong_use_of_the_command_is_one_line(tmp_path: Path) -> None:
    done = run(b"hello\r\n\r\n", tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"fsm-agent: what came on standard input is not the Debug Adapter Protocol")
    assert done.stderr.count(b"\n") == 1
    assert callable(serve_stdio)


# How editors spell things


def test_lines_from_zero_and_paths_as_addresses(tmp_path: Path) -> None:
    client = Client.of({"linesStartAt1": False, "columnsStartAt1": False, "pathFormat": "uri"})
    assert (client.line(1), client.our_line(0), client.column(5), client.our_column(4)) == (0, 1, 4, 5)
    path = tmp_path / "a b" / "table.py"
    assert client.path(client.source(path)) == str(path)
    assert client.source(path)["path"].startswith("file://")
    with pytest.raises(ConfigError, match="a source has no path"):
        Client().path({"name": "x"})
