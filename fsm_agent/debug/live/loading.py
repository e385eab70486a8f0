"""Load a table from a module's text in a process of its own, which may loop or crash without harm.

One process is always kept ready: it has imported what every table needs, and waits for its order."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.debug.live import load_table
from fsm_agent.diagram.table_json import table_from
from fsm_agent.diagram.versions.load import Version
from fsm_agent.errors import ConfigError
from fsm_agent.support.processes import bare_environment

SECONDS = 10.0
"""In which a module has made its table."""
LOOK = 0.05
"""Seconds after which a load looks whether it is still wanted."""
MOST = 50_000_000
"""Bytes of a table; a larger answer is no table of a person."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Why a text makes no table, in one line, and the line of the text where it is known."""

    reason: str
    line: int | None = None


class Loader:
    """Loads texts of one file. ``name``: of the table in the module, empty for its only one."""

    def __init__(self, path: Path, name: str = "", seconds: float = SECONDS) -> None:
        self._path, self._name, self._seconds = path, name, seconds
        self._home = tempfile.TemporaryDirectory(prefix="fsm-agent-")
        self._ready: subprocess.Popen[bytes] | None = self._start()
        self._one, self._closed = threading.Lock(), False

    def load(
        self, text: bytes, wanted: Callable[[], bool] = lambda: True, path: Path | None = None
    ) -> Version | Broken | None:
        """Return the table of a text, or what is wrong with the text, or ``None`` when it was not ``wanted``
        any more. ``path``: where the text is, if it is not the loader's own."""
        with self._one:
            return self._load(text, wanted, path)

    def _load(self, text: bytes, wanted: Callable[[], bool], path: Path | None) -> Version | Broken | None:
        process, self._ready = self._ready or self._start(), None
        order = {
            "path": str(path or self._path),
            "name": self._name,
            "text": base64.b64encode(text).decode(),
        }
        given: bytes | None = json.dumps(order).encode() + b"\n"
        until = time.monotonic() + self._seconds
        try:
            while True:
                try:
                    answer, said = process.communicate(given, LOOK)
                    break
                except subprocess.TimeoutExpired:
                    given = None
                if not wanted():
                    return None
                if time.monotonic() > until:
                    return Broken(f"the file takes longer than {self._seconds:g} seconds to load")
        except BrokenPipeError:
            answer, said = b"", b""
        finally:
            _end(process)
            self._ready = None if self._closed else self._start()
        return self._read(answer, said, process.returncode)

    def close(self) -> None:
        """End the process that waits."""
        self._closed = True
        if self._ready is not None:
            _end(self._ready)
        self._home.cleanup()

    def _start(self) -> subprocess.Popen[bytes]:
        env = bare_environment() | {"HOME": self._home.name, "USERPROFILE": self._home.name}
        try:
            return subprocess.Popen(  # noqa: S603  # our own interpreter and file
                [sys.executable, "-I", "-B", load_table.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._home.name,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"no process could be started ({error.strerror})", sys.executable) from None

    def _read(self, answer: bytes, said: bytes, status: int | None) -> Version | Broken:
        try:
            found = json.loads(answer) if len(answer) <= MOST else {}
            if "reason" in found:
                return Broken(found["reason"], found["line"])
            return Version(self._path.name, table_from(found["table"], self._path.name), found["limits"])
        except ConfigError as error:
            return Broken(str(error))
        except (ValueError, KeyError, TypeError):
            last = said.decode("utf-8", "replace").strip().splitlines()[-1:]
            reason = f": {last[0][:200]}" if last else ""
            return Broken(f"the process that loads the file ended with {status} and no table{reason}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that the module started."""
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
