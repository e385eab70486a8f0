"""Replacing a file at once: whoever reads it sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from fsm_agent.support.private_files import private_file


def replace_file(real: Path, content: bytes, mode: int | None = None) -> None:
    """Put ``content`` in place of the file, keeping its permissions. With ``mode`` it gets these and keeps
    no others; nobody else can read it before it has them. Raises ``OSError``."""
    draft = real.with_name(f".{real.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        before = _mode(real)
        new = mode is None and before is None
        with open(draft, "xb", opener=None if new else private_file) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not new:
            most = 0o7777 if mode is None else mode
            draft.chmod(most if before is None else before & most)
        draft.replace(real)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _mode(real: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return real.stat().st_mode & 0o7777
    return None
