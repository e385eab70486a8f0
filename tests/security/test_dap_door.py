"""Another user of the machine, or a program that may only connect, gets nothing done through the door for editors."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.cli.debug import serve
from fsm_agent.cli.options import CliOptions
from fsm_agent.debug.dap import LaunchOptions, serve_port
from fsm_agent.debug.dap.protocol import MOST
from fsm_agent.errors import ConfigError
from fsm_agent.testing import text
from tests.helpers.dap_editor import Editor, Refused, workshop_of
from tests.helpers.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


@contextmanager
def served(home: Path, at: int | Path = 0, opener: Any = None) -> Iterator[tuple[Any, str]]:
    """(address to connect to, token) of a server that must have ended at the end."""
    workshop, told = workshop_of(home, [text("hello")]), threading.Event()
    place: list[Any] = []

    def ready(where: str, token: str) -> None:
        host, _, port = where.rpartition(":")
        place.extend((where if isinstance(at, Path) else (host, int(port)), token))
        told.set()

    server = threading.Thread(
        target=serve_port, args=(workshop, None, opener or never, at, (), ready), daemon=True
    )
    server.start()
    assert told.wait(PATIENCE)
    try:
        yield place[0], place[1]
        server.join(PATIENCE)
        assert not server.is_alive()
    finally:
        workshop.close()


def never(options: LaunchOptions) -> Any:
    raise AssertionError("nothing was to be opened")


def connected(address: Any) -> socket.socket:
    made = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    made.settimeout(PATIENCE)
    made.connect(address)
    return made


@contextmanager
def editor(address: Any) -> Iterator[Editor]:
    ours = connected(address)
    with ours, ours.makefile("rb", 0) as reading, ours.makefile("wb") as writing:
        yield Editor(reading, writing)
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)


def used(address: Any, token: str) -> None:
    """A person's editor does what it came for, and the server ends."""
    with editor(address) as one:
        one.begin(task="go", stopOnEntry=True, **({"token": token} if token else {}))
        one.stopped()
        one.ends()
        one.ask("disconnect")


@pytest.mark.parametrize("how", ["launch", pytest.param("attach", marks=pytest.mark.slow)])
def test_without_the_token_nothing_of_an_attackers_is_imported(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"evil_{how}.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path)!r}, 'ran').touch()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = CliOptions(home=str(tmp_path / "home"))
    workshop, told, place = workshop_of(tmp_path / "home", [text("hello")]), threading.Event(), list[str]()

    def printed(line: str = "", **_: Any) -> None:
        place.append(line)
        told.set()

    monkeypatch.setattr("builtins.print", printed)
    server = threading.Thread(target=serve, args=(workshop, None, "0", given), daemon=True)
    server.start()
    assert told.wait(PATIENCE)
    where, _, token = place[0].partition("  token ")
    address = ("127.0.0.1", int(where.rpartition(":")[2]))
    for wrong in ({}, {"token": ""}, {"token": "x"}, {"token": token[:-1]}, {"token": 7}, {"token": [token]}):
        with editor(address) as one:
            one.ask("initialize", adapterID="x")
            with pytest.raises(Refused, match="the token is missing or wrong"):
                one.ask(how, table=f"evil_{how}:make", cwd=str(tmp_path), env={"PYTHONPATH": "."}, **wrong)
    assert not (tmp_path / "ran").exists()
    assert not any(event["event"] == "initialized" for event in one.events)
    with editor(address) as right, pytest.raises(Refused, match="the table cannot be loaded"):
        right.begin(how, table=f"evil_{how}:make", token=token)
    assert (tmp_path / "ran").exists(), "the attack would have worked"
    server.join(PATIENCE)
    workshop.close()


def test_before_the_token_nothing_can_be_asked(tmp_path: Path) -> None:
    with served(tmp_path) as (address, token):
        with editor(address) as one:
            one.ask("initialize", adapterID="x")
            for command, given in {
                "setBreakpoints": {"source": {"path": "/x.py"}}, "evaluate": {"expression": "1"}, "threads": {},
                "configurationDone": {}, "source": {"sourceReference": 1}, "modules": {},
            }.items():  # fmt: skip
                with pytest.raises(Refused, match="nothing can be asked yet"):
                    one.ask(command, **given)
        used(address, token)


def test_slow_connections_keep_no_editor_out(tmp_path: Path) -> None:
    """More of them than are heard at once: of some not a byte comes, of some the beginning of a message."""
    with served(tmp_path) as (address, token):
        slow = [connected(address) for _ in range(2 * MOST)]
        for one in slow[::2]:
            one.sendall(b"Content-Length: 100\r\n\r\n{")
        began = time.monotonic()
        used(address, token)
        assert time.monotonic() - began < PATIENCE
        for one in slow:
            with contextlib.suppress(OSError):
                assert one.recv(1) == b""
            one.close()


def test_only_one_editor_is_let_in(tmp_path: Path) -> None:
    with served(tmp_path) as (address, token), editor(address) as late:
        late.ask("initialize", adapterID="x")
        used(address, token)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no sockets in the file system")
class TestSocketFile:
    def test_it_is_our_users_alone_and_needs_no_token(self, tmp_path: Path) -> None:
        path = tmp_path / "fsm.sock"
        before = os.umask(0)
        try:
            with served(tmp_path / "home", path) as (address, token):
                assert (stat.S_IMODE(path.stat().st_mode), token, address) == (0o600, "", str(path))
                used(address, token)
        finally:
            os.umask(before)
        assert not path.exists()

    def test_what_a_dead_process_left_is_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "fsm.sock"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        with served(tmp_path / "home", path) as (address, token):
            used(address, token)

    @pytest.mark.parametrize("name", ["file", "live.sock", "no/folder.sock", "x" * 200])
    def test_what_cannot_be_used_is_one_line_and_stays(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").write_text("mine")
        with socket.socket(socket.AF_UNIX) as live:
            live.bind(str(tmp_path / "live.sock"))
            live.listen()
            with pytest.raises(ConfigError, match="the socket cannot be used"):
                serve_port(workshop_of(tmp_path / "home", []), None, never, tmp_path / name)
        assert (tmp_path / "file").read_text() == "mine"

    @pytest.mark.skipif(
        not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can act as another user"
    )
    def test_another_user_cannot_connect(self, tmp_path: Path) -> None:
        folder = tmp_path / "open"
        folder.mkdir(mode=0o777)
        for one in (folder, *folder.parents):
            if one.stat().st_mode & 0o001 == 0:
                one.chmod(one.stat().st_mode | 0o001)
        with served(tmp_path / "home", folder / "fsm.sock") as (address, token):
            code = f"import os, socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({address!r})"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert "PermissionError" in done.stderr
            used(address, token)
