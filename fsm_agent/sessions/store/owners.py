"""Which process owns a turn, and whether it still lives.

Each process that runs turns holds a lock on a file of its own beside the database for as long as it lives.
The system lets go of it when the process dies, however it dies, so nobody has to guess from process numbers
or from times. (Why: decision 30.)"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
import uuid
import weakref
from pathlib import Path
from typing import Any

from fsm_agent.errors import SessionBusy
from fsm_agent.support.file_lock import take
from fsm_agent.support.private_files import private_folder

FOLDER = "owners"


class Owners:
    """Knows the processes that run turns in one home."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._lock = threading.Lock()
        self._me, self._pid, self._handle = "", 0, -1

    @property
    def me(self) -> str:
        """The name of this process in the database; made, together with its lock, when it is first asked
        for, and another one when somebody removed the file: what runs under the old name may be taken over,
        what begins now is seen to live."""
        with self._lock:
            if not self._me or self._pid != os.getpid() or not self._file(self._me).exists():
                self._me, self._pid = uuid.uuid4().hex[:12], os.getpid()
                self._handle = self._locked(self._me)
                weakref.finalize(self, _gone, self._file(self._me), self._handle, self._pid)
            return self._me

    def seen(self, owner: str) -> bool:
        """Say whether everybody sees that ``owner`` lives, and that it is this process: nobody takes over
        what it runs."""
        with self._lock:
            return owner == self._me and self._pid == os.getpid() and self._file(owner).exists()

    def _locked(self, owner: str) -> int:
        private_folder(self._folder)
        handle = os.open(self._file(owner), os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        take(handle)
        who = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
        os.write(handle, json.dumps(who).encode())
        return handle

    def alive(self, owner: str | None) -> dict[str, Any] | None:
        """Return who the owner is (pid, host, since in seconds), or ``None`` when its process is gone."""
        if not owner:
            return None
        if owner == self._me and self._pid == os.getpid():
            return self._said(owner)
        try:
            handle = os.open(self._file(owner), os.O_RDWR)
        except OSError:
            return None
        try:
            take(handle)
        except OSError:
            return self._said(owner)
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):
            self._file(owner).unlink()
        return None

    def refuse_if_alive(self, session_id: str, holder: str, owner: str | None) -> None:
        """Raise ``SessionBusy`` when another process that lives runs the turn ``holder`` of the session."""
        if owner == self.me:
            return  # ours, and no live copy holds it: the turn was dropped
        if (who := self.alive(owner)) is not None:
            since = time.strftime("%H:%M:%S", time.localtime(who["since"]))
            raise SessionBusy(
                f"session {session_id} is busy: turn {holder} is running in process {who['pid']} on"
                f" {who['host']} (up since {since}); wait for it, or stop that process and resume the turn"
            )

    def _said(self, owner: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(self._file(owner).read_text(encoding="utf-8"))
            if isinstance(said, dict):
                return said
        return {"pid": 0, "host": "?", "since": 0.0}

    def _file(self, owner: str) -> Path:
        return self._folder / f"{owner}.lock"


def _gone(file: Path, handle: int, pid: int) -> None:
    """The owner does not need its lock any more; a forked child leaves its parent's alone."""
    if pid == os.getpid():
        with contextlib.suppress(OSError):
            file.unlink()
        os.close(handle)
