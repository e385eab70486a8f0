"""Load a table from a module's text in a separate process, which may loop or crash without harm.

One process is always kept ready: it has imported what every table needs, and waits for its order."""

from __future__ import annotations

import base64
import importlib
import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm_agent.diagram.table_json import default_limits, describe, load, table_from
from fsm_agent.diagram.versions import Version
from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import bare_environment

SECONDS = 10.0
"""Time limit for loading a module."""
LOOK = 0.05
"""Interval at which a load checks whether it is still wanted, in seconds."""
PROGRAM = f"""import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})
from fsm_agent.debug.live.loading import answer_order
answer_order()"""
MOST = 50_000_000
"""Maximum bytes of a table; no hand-written table is larger."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Why a text does not define a table, in one line, and the line of the text if known."""

    reason: str
    line: int | None = None


class Loader:
    """Loader for the text of one file. ``name``: of the table in the module, empty for its only one."""

    def __init__(self, path: Path, name: str = "", seconds: float = SECONDS) -> None:
        self._path, self._name, self._seconds = path, name, seconds
        self._home = tempfile.TemporaryDirectory(prefix="fsm-agent-")
        self._ready: subprocess.Popen[bytes] | None = self._start()
        self._one, self._closed = threading.Lock(), False

    def load(
        self, text: bytes, wanted: Callable[[], bool] = lambda: True, path: Path | None = None
    ) -> Version | Broken | None:
        """Return the table of a text, or the reason why it has none, or ``None`` once the text is not
        ``wanted`` anymore. ``path``: the file of the text, if it is not the loader's own."""
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
                    answer, stderr = process.communicate(given, LOOK)
                    break
                except subprocess.TimeoutExpired:
                    given = None
                if not wanted():
                    return None
                if time.monotonic() > until:
                    return Broken(f"the file takes longer than {self._seconds:g} seconds to load")
        except BrokenPipeError:
            answer, stderr = b"", b""
        finally:
            _end(process)
            self._ready = None if self._closed else self._start()
        return self._read(answer, stderr, process.returncode)

    def close(self) -> None:
        """Stop the waiting process."""
        self._closed = True
        if self._ready is not None:
            _end(self._ready)
        self._home.cleanup()

    def _start(self) -> subprocess.Popen[bytes]:
        env = bare_environment() | {"HOME": self._home.name, "USERPROFILE": self._home.name}
        try:
            return subprocess.Popen(  # noqa: S603  # our own interpreter and file
                [sys.executable, "-I", "-B", "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._home.name,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"no process could be started ({error.strerror})", sys.executable) from None

    def _read(self, answer: bytes, stderr: bytes, status: int | None) -> Version | Broken:
        try:
            found = json.loads(answer) if len(answer) <= MOST else {}
            if "reason" in found:
                return Broken(found["reason"], found["line"])
            return Version(self._path.name, table_from(found["table"], self._path.name), found["limits"])
        except ConfigError as error:
            return Broken(str(error))
        except (ValueError, KeyError, TypeError):
            last = stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            reason = f": {last[0][:200]}" if last else ""
            return Broken(f"the process that loads the file ended with {status} and no table{reason}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and everything that the module started."""
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


# In the separate process, which imports what every table needs before it waits for its order.


WARM = ("fsm_agent.conversation.effects", "fsm_agent.fsm.properties", "fsm_agent.settings")
"""Modules that the turn's default limits need: the slow part of loading them."""


def answer_order() -> None:
    """Load one table, and answer on the original standard output.

    The order is one line: ``{"path", "name", "text"}``, with the text in base64, so that exactly this text is
    loaded. The answer is ``{"table", "limits"}``, or, on failure, ``{"reason", "line"}`` with the last
    executing line of the module."""
    for name in WARM:
        importlib.import_module(name)
    order = json.loads(sys.stdin.buffer.readline())
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of the module must not mix with the answer
    path = str(Path(order["path"]).resolve())
    _read_from_memory(path, base64.b64decode(order["text"]))
    try:
        target = f"{path}:{order['name']}" if order["name"] else path
        table = load([str(Path(path).parent)], target)
        limits = default_limits(table) if getattr(table, "default_limits", None) else None
        found: dict[str, Any] = {"table": describe(table), "limits": limits}
    except BaseException as error:  # the module may raise anything, SystemExit included
        found = {"reason": _reason(error), "line": _line(error, path)}
    with answer:
        json.dump(found, answer)


def _read_from_memory(path: str, text: bytes) -> None:
    """Make imports use this text for the file at ``path``, and no bytecode cache."""
    loader = importlib.machinery.SourceFileLoader
    data, stats = loader.get_data, loader.path_stats

    def get_data(self: Any, name: str) -> bytes:
        return text if name == path else data(self, name)

    def path_stats(self: Any, name: str) -> Any:
        if name == path:
            raise OSError("this text is in memory")
        return stats(self, name)

    loader.get_data, loader.path_stats = get_data, path_stats  # type: ignore[assignment]


def _reason(error: BaseException) -> str:
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}"


def _line(error: BaseException, path: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None
