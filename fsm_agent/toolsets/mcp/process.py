"""A server as a process: started under a supervisor, ended even if this program is killed, with its lines,
its log, and the reason why a connection to it ended. Independent of the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsm_agent.support.files import private_file, private_folder
from fsm_agent.support.redaction import bare_environment, mask
from fsm_agent.support.texts import one_line
from fsm_agent.toolsets import process as supervised
from fsm_agent.toolsets.mcp.config import ServerConfig
from fsm_agent.toolsets.process_supervisor import SETTLE, SupervisorOrder

GRACE = 1.0
"""Seconds for a server to end after its input is closed, and again after it is asked to end."""
_POLL = 0.01
_POSIX = os.name == "posix"


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to start; ``env`` is its whole environment."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path = Path()


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server. ``process`` has its pipes and ends with it. Without a ``line`` to a supervisor (on
    systems without process groups) it is the server itself, which may outlive a killed program."""

    process: asyncio.subprocess.Process
    line: socket.socket | None

    async def end(self, *, polite: bool) -> None:
        """End the server and all that it started: close its input, then ask it to end, then kill it. Takes at
        most two graces. Unless ``polite``, ask it at once."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            if not (polite and await self._has_ended(GRACE + SETTLE)):
                self._ask()
                await self._has_ended(2 * GRACE + SETTLE)
        finally:
            supervised.kill(self.process)
            if self.line is not None:
                self.line.close()
        await self._has_ended(GRACE)
        _close_pipes(self.process)

    def _ask(self) -> None:
        with contextlib.suppress(OSError):
            if self.line is not None:
                self.line.send(supervised.STOP)
            else:
                self.process.terminate()

    async def _has_ended(self, seconds: float) -> bool:
        """Return whether it ended in time. Polls its exit code, because waiting would also wait for its
        pipes."""
        until = time.monotonic() + seconds
        while self.process.returncode is None:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(_POLL)
        return True


async def start_server(launch: Launch) -> ServerProcess:
    """Start the server and return it. Raises ``OSError`` that names the command. Cancellation during the
    start ends it."""
    command = [_find_command(launch), *launch.args]
    if not _POSIX:
        pipe = supervised.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=launch.cwd, env=dict(launch.env)
        )
        return ServerProcess(process, None)
    line, far_end = socket.socketpair()
    line.setblocking(False)
    order = SupervisorOrder(command, str(launch.cwd), GRACE)
    with far_end:
        try:
            process = await supervised.start_supervisor(
                order, launch.env, line, far_end, supervised.PIPE, supervised.PIPE
            )
        except BaseException:
            line.close()
            raise
    server = ServerProcess(process, line)
    signal = b""
    try:
        signal = await asyncio.get_running_loop().sock_recv(line, 1)
        if signal != b" ":
            await process.wait()
            raise OSError(supervised.report_from(line, signal).error)
    except BaseException:
        await server.end(polite=signal != b"")
        raise
    return server


def status_of(code: int) -> str:
    """Describe how a process ended."""
    if code >= 0:
        return f"status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


def _find_command(launch: Launch) -> str:
    if os.sep in launch.command or "/" in launch.command:
        return str(launch.cwd / Path(launch.command).expanduser())
    path = shutil.which(launch.command, path=launch.env.get("PATH"))
    if path is None:
        raise FileNotFoundError(f"there is no command {launch.command!r}")
    return path


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes even if a process that left the group still holds their other ends. No public interface
    does this."""
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with contextlib.suppress(PermissionError):
            transport.close()


# ----------------------------------------------------------------------------------------------------
# Splitting a server's output into lines, within limits. Pure.


MOST_NOISE = 1_000_000
"""Maximum bytes between two messages that are not a message; more means another protocol."""
BURST, STEADY = 2_000, 200
"""Messages that a server may send at once, and per second after that. A rate alone is not enough: messages
that are read late arrive in a burst."""


class ProtocolViolation(Exception):
    """The server violated a limit, so the connection must end. The text tells people how."""


class LineReader:
    """Splits pieces into whole lines. Never holds more than ``most`` bytes, and takes time proportional to
    its input."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Return the lines that this piece completes, without their ends. Raises ``ProtocolViolation`` for a
        line that is too long."""
        *whole, rest = piece.split(b"\n")
        for part in whole:
            self._add(part)
            line, self._held = bytes(self._held), bytearray()
            yield line.rstrip(b"\r")
        self._add(rest)

    def _add(self, part: bytes) -> None:
        if len(self._held) + len(part) > self._most:
            raise ProtocolViolation(f"it wrote a message of more than {self._most:,} bytes")
        self._held += part


class FloodGuard:
    """Detects a server that writes without end."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._then = now, now()
        self._room, self._noise = float(BURST), 0

    def message(self) -> None:
        """Count a message. Raises ``ProtocolViolation`` for too many."""
        self._noise, now = 0, self._now()
        self._room = min(BURST, self._room + STEADY * (now - self._then)) - 1
        self._then = now
        if self._room < 0:
            raise ProtocolViolation(f"it sent {BURST:,} messages at once and more than {STEADY} a second")

    def noise(self, size: int) -> None:
        """Count an invalid line of this many bytes. Raises ``ProtocolViolation`` when no valid message
        arrives for too long."""
        self._noise += size + 1
        if self._noise > MOST_NOISE:
            raise ProtocolViolation(
                f"it wrote more than {MOST_NOISE:,} bytes that are not messages to its standard output"
            )


# ----------------------------------------------------------------------------------------------------
# A server's standard error: a bounded file in the home directory, and its last words.


log = logging.getLogger(__name__)

LOGS = "logs"
"""Folder in the home directory."""
MAX_FILE = 250_000
"""Maximum bytes of one file; it and its predecessor are kept."""
MAX_LINE = 4_000
MAX_A_SECOND = 50_000
"""Maximum bytes written per second; excess lines are counted and left out."""
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])|[\x00-\x08\x0b-\x1f\x7f]"
)


class ServerLog:
    """A log of timestamped lines, without the ``secrets`` and without control sequences. Never raises for
    disk errors."""

    def __init__(self, path: Path, secrets: Iterable[str] = (), now: Callable[[], float] = time.time) -> None:
        self.path, self._secrets, self._now = path, tuple(secrets), now
        self._last: deque[str] = deque(maxlen=4)
        self._lines = LineReader(MAX_LINE)
        self._second, self._written, self._dropped, self._broken = 0, 0, 0, False

    @property
    def last_words(self) -> str:
        """The last lines, joined into one; empty if there are none."""
        return one_line(" | ".join(line for line in self._last if line), 300)

    def hush(self) -> None:
        """Forget the last words: further output comes from another process."""
        self._last.clear()

    def feed(self, piece: bytes) -> None:
        """Log bytes as they arrive."""
        try:
            for line in self._lines.feed(piece):
                self.say(line.decode("utf-8", "replace"))
        except ProtocolViolation:  # a line without an end: log its beginning
            self._lines = LineReader(MAX_LINE)
            self.say(piece[:MAX_LINE].decode("utf-8", "replace") + " …")

    def say(self, text: str) -> None:
        """Log one line."""
        now = self._now()
        if int(now) != self._second:
            left_out, self._second, self._written, self._dropped = self._dropped, int(now), 0, 0
            if left_out:
                self._append(f"[{left_out:,} lines left out]\n")
        if self._written > MAX_A_SECOND:
            self._dropped += 1
            return
        line = mask(_ESCAPES.sub(" ", text[:MAX_LINE]), self._secrets).rstrip()
        self._last.append(line)
        self._written += len(line) + 1
        self._append(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))} {line}\n")

    def _append(self, text: str) -> None:
        if self._broken:
            return
        try:
            private_folder(self.path.parent)
            if self.path.exists() and self.path.stat().st_size > MAX_FILE:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with open(self.path, "a", encoding="utf-8", errors="replace", opener=private_file) as file:
                file.write(text)
        except OSError as error:
            self._broken = True
            log.warning("%s cannot be written: %s", self.path, error.strerror)


# ----------------------------------------------------------------------------------------------------
# How a connection, or a call over it, ended.


class ConnectionEnding:
    """The reason for the end of a connection. The first reason wins; later ones are consequences. Belongs to
    the engine's loop."""

    def __init__(self) -> None:
        self.reason, self.wanted = "", False
        self._event = asyncio.Event()

    def end(self, reason: str) -> None:
        """Record that the connection ended; keep the first reason."""
        self.reason = self.reason or reason
        self._event.set()

    def want(self) -> None:
        """End it without an error: the other side gets time for an orderly end."""
        self.wanted = not self.came
        self.end("it was closed")

    @property
    def came(self) -> bool:
        """Return whether it has ended."""
        return self._event.is_set()

    async def wait(self) -> str:
        """Wait until it ends, and return why."""
        await self._event.wait()
        return self.reason


class Broken(Exception):
    """There is no connection, or no longer one. ``sent``: the call may have reached the server."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class McpRefused(Exception):
    """The server answered the call with a protocol error."""


class Unusable(Exception):
    """The answer is not a valid result; the tool may have run."""


# ----------------------------------------------------------------------------------------------------
# A server's endpoint: its config with every ``${VAR}`` replaced, its environment, and which values are
# secrets.


_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie|session", re.IGNORECASE)


class Unset(Exception):
    """A variable in the config has no value here; the text names it."""


def expand_variables(text: str, environment: Mapping[str, str], found: set[str]) -> str:
    """Return the text with its variables replaced; add their values to ``found``. Raises ``Unset``."""

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        given = environment.get(name) or default
        if given is None:
            raise Unset(f"${{{name}}} is not set in the environment")
        found.add(given)
        return given

    return _VARIABLE.sub(value, text)


def variables_in(config: ServerConfig) -> set[str]:
    """Return the variables that ``expand_variables`` would look up for a server."""
    login = (config.oauth.secret or "") if config.oauth else ""
    texts = (*config.env.values(), *config.headers.values(), config.url or "", login)
    return {match["name"] for text in texts for match in _VARIABLE.finditer(text)}


def expand_all(words: Mapping[str, str], environment: Mapping[str, str], found: set[str]) -> dict[str, str]:
    """Expand the variables in all values; add the used ones to ``found``."""
    return {name: expand_variables(text, environment, found) for name, text in words.items()}


def secret_values(words: Mapping[str, str]) -> Iterable[str]:
    """Yield the values whose names suggest secrets, and the ``x`` of ``Bearer x``."""
    for name, value in words.items():
        if _SECRET_NAME.search(name):
            yield value
            yield from value.split()[1:]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A program to launch, or an address. ``secrets`` must not be shown; the server receives ``roots``.
    ``client_secret`` of a login, or its key. ``plain``: any host may be used without TLS."""

    launch: Launch | None
    url: str = field(default="", repr=False)
    client_secret: str | None = field(default=None, repr=False)
    plain: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    roots: tuple[Path, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


def endpoint_of(config: ServerConfig, workdir: Path, environment: Mapping[str, str]) -> Endpoint:
    """Resolve a server's endpoint. Raises ``Unset`` when the config names a variable without a value."""
    found: set[str] = set()
    own = expand_all(config.env, environment, found)
    headers = expand_all(config.headers, environment, found)
    url = expand_variables(config.url or "", environment, found)
    login = config.oauth.secret if config.oauth else None
    client_secret = expand_variables(login, environment, found) if login else None
    named = (*found, *secret_values(own), *secret_values(headers), client_secret or "")
    secrets = frozenset(filter(None, named))
    folders = config.roots if config.roots is not None else (".",)
    roots = tuple((workdir / Path(root).expanduser()).resolve() for root in folders)
    if config.command is None:
        return Endpoint(None, url, client_secret, config.plain_http, headers, roots, secrets)
    cwd = workdir / Path(config.cwd or ".").expanduser()
    launch = Launch(config.command, config.args, {**bare_environment(environment), **own}, cwd)
    return Endpoint(launch, roots=roots, secrets=secrets)
