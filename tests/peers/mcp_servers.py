"""Published MCP servers: ``server-filesystem`` and ``server-everything`` from npm, ``mcp-server-time`` from
PyPI."""

from __future__ import annotations

import os
import queue
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from tests.helpers.waiting import PATIENCE
from tests.peers.environment import PeerUnavailable, peer_package, peer_python

FILESYSTEM = ("@modelcontextprotocol/server-filesystem", "2026.8.31")
EVERYTHING = ("@modelcontextprotocol/server-everything", "2026.8.31")
TIME = ("mcp-server-time", "2026.10.19")


def filesystem(*directories: Path) -> dict[str, Any]:
    return {"command": "node", "args": [str(_script(*FILESYSTEM)), *map(str, directories)]}


def everything() -> dict[str, Any]:
    return {"command": "node", "args": [str(_script(*EVERYTHING)), "stdio"]}


def time() -> dict[str, Any]:
    python = _installed(lambda: peer_python(*TIME))
    return {"command": str(python), "args": ["-m", "mcp_server_time", "--local-timezone", "Etc/UTC"]}


class EverythingOverHttp:
    """``server-everything`` with streamable HTTP on loopback; can be stopped in mid-sentence and started
    again."""

    def __init__(self) -> None:
        self.port = _free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        node = shutil.which("node")
        assert node is not None
        command, env = (
            [node, str(_script(*EVERYTHING)), "streamableHttp"],
            {**os.environ, "PORT": str(self.port)},
        )
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(command, env=env, text=True, **pipes)
        said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_lines, args=(self._process, said), daemon=True).start()
        while "listening on port" not in said.get(timeout=PATIENCE):
            pass

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _lines(process: subprocess.Popen[str], said: queue.Queue[str]) -> None:
    """Everything it says, so that it never waits for a reader."""
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            said.put(line)


def _script(package: str, version: str) -> Path:
    return _installed(lambda: peer_package(package, version)) / "dist" / "index.js"


def _installed(find: Callable[[], Path]) -> Path:
    try:
        return find()
    except PeerUnavailable as why:
        pytest.skip(f"an MCP server is not here and cannot be installed: {why}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
