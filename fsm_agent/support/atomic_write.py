"""Replacing a file at once: whoever reads it sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace_file(real: Path, content: bytes, mode: int | None = None) -> None:
    """Put ``content`` in place of the file, keeping its permissions; a new file gets ``mode``. Raises
    ``OSError``."""
    draft = real.with_name(f".{real.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            draft.chmod(mode)
        with contextlib.suppress(FileNotFoundError):
            draft.chmod(real.stat().st_mode & 0o7777)
        draft.replace(real)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
