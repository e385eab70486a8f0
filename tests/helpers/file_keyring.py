"""A keyring in a file, for processes that select it with ``PYTHON_KEYRING_BACKEND``."""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend


class FileKeyring(KeyringBackend):
    """Keeps what ``FILE_KEYRING`` names; a file with the word ``locked`` in it is one."""

    priority = 1

    def get_password(self, service: str, username: str) -> str | None:
        text = Path(os.environ["FILE_KEYRING"]).read_text()
        if text == "locked":
            raise PermissionError("locked, and here is a secret: sk-inside-0123456789")
        found: str | None = json.loads(text).get(f"{service} {username}")
        return found

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError

    def delete_password(self, service: str, username: str) -> None:
        raise NotImplementedError
