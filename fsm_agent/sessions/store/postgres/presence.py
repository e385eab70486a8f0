"""Which processes are running: each holds an advisory lock of the database on a connection of its own, and
says every few seconds that it is still there.

The lock is free as soon as a process has died, however it died. One that stands still, or whose machine is
gone without a word, keeps it, and is silent: after ``SILENT`` seconds it counts as gone. A process whose
connection was cut, or whose server was restarted, takes its lock again. Should somebody have been faster, the
fence of its turns stops it. (Why: decision 104.)"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import select
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import psycopg

from fsm_agent.sessions.store.owners import Owners
from fsm_agent.sessions.store.postgres.connecting import Raw, as_store_error, connected
from fsm_agent.sessions.store.postgres.database import PostgresDatabase

log = logging.getLogger(__name__)
BEAT = 5.0
"""Seconds between two signs of life."""
SILENT = 30.0
"""Seconds without one after which a process counts as gone."""
BACK = 10.0
"""Seconds after its start in which a server's processes have time to take their locks again."""
AGAIN, FAREWELL = 1.0, 2.0
"""Seconds between two attempts to be seen again, and that the last word may take."""
FORGOTTEN = "1 day"
_LOCK = "SELECT pg_try_advisory_lock($1)"
_HERE = """INSERT INTO owners (id, key, pid, host, since, seen) VALUES ($1, $2, $3, $4, $5, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET seen = clock_timestamp()"""
_ALIVE = """SELECT pid, host, since FROM owners WHERE id = ?
    AND seen > clock_timestamp() - make_interval(secs => ?)
    AND (EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (CAST(classid AS BIGINT) << 32) + CAST(objid AS BIGINT) = key)
        OR pg_postmaster_start_time() > clock_timestamp() - make_interval(secs => ?))"""


class PostgresOwners(Owners):
    """Knows the processes that run turns in one database."""

    def __init__(self, store: Callable[[], Any]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._me, self._pid = "", 0
        self._presence: Presence | None = None

    def _database(self) -> PostgresDatabase:
        """The store's, which is opened when it is first needed."""
        database: PostgresDatabase = self._store().database
        return database

    @property
    def me(self) -> str:
        """The name of this process in the database; made, together with its lock, when it is first asked
        for. Raises ``StoreError``."""
        with self._lock:
            if not self._me or self._pid != os.getpid():
                database = self._database()
                self._presence = Presence(database)
                weakref.finalize(self, self._presence.leave)
                self._me, self._pid = self._presence.name, os.getpid()
            return self._me

    def alive(self, owner: str | None) -> dict[str, Any] | None:
        """Return who the owner is (pid, host, since in seconds), or ``None`` when its process is gone."""
        if not owner:
            return None
        found = self._database().select(_ALIVE, owner, SILENT, BACK)
        if owner == self._me and self._pid == os.getpid():
            return {"pid": self._pid, "host": platform.node(), "since": self._presence_since()}
        return dict(zip(("pid", "host", "since"), found[0], strict=True)) if found else None

    def _presence_since(self) -> float:
        return self._presence.since if self._presence is not None else 0.0


class Presence:
    """One process in the table of owners, with a connection and a thread of its own, which hears what others
    notify it of as well."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.name, self.since = uuid.uuid4().hex[:12], time.time()
        self._key = int(self.name, 16)
        self._pid, self._url, self._heard = os.getpid(), database.url, database.notified
        self._leaving = threading.Event()
        self._woken, self._wakes = socket.socketpair()
        try:
            self._raw = self._entered()
        except psycopg.Error as error:
            raise as_store_error(error, self._url) from error
        self._thread = threading.Thread(target=self._stay, daemon=True, name="fsm-agent-presence")
        self._thread.start()

    def _entered(self) -> Raw:
        raw = connected(self._url, application="fsm-agent presence")
        try:
            raw.execute(_LOCK, (self._key,))
            raw.execute(_HERE, (self.name, self._key, self._pid, platform.node(), self.since))
            raw.execute(f"DELETE FROM owners WHERE seen < clock_timestamp() - interval '{FORGOTTEN}'")  # noqa: S608
            (channel,) = raw.execute("SELECT 'fsm_agent_' || md5(current_schema())").fetchone() or ("",)
            raw.execute(f"LISTEN {channel}")
        except BaseException:
            raw.close()
            raise
        return raw

    def _stay(self) -> None:
        while not self._leaving.is_set():
            try:
                if self._raw.closed:
                    self._raw = self._entered()
                select.select([self._raw.fileno(), self._woken.fileno()], [], [], BEAT)
                for one in self._raw.notifies(timeout=0):
                    self._heard(one.payload)
                self._raw.execute("UPDATE owners SET seen = clock_timestamp() WHERE id = $1", (self.name,))
            except (psycopg.Error, OSError) as error:
                log.warning("this process is not seen by others: %s", as_store_error(error, self._url))
                self._raw.close()
                self._leaving.wait(AGAIN)
        with contextlib.suppress(psycopg.Error):
            self._raw.execute("DELETE FROM owners WHERE id = $1", (self.name,))
        self._raw.close()
        self._woken.close()

    def leave(self) -> None:
        """The process does not run turns any more; a forked child leaves its parent's lock alone."""
        if self._pid != os.getpid() or self._leaving.is_set():
            return
        self._leaving.set()
        self._wakes.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(FAREWELL)
