"""Where the logins to MCP servers are kept: in the machine's keyring, or where it has none in a file that
only its owner reads. Knows nothing of the SDK."""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fsm_agent.support.files import FILE, LOGINS, private_folder, replace_file
from fsm_agent.support.redaction import keep_secret

SERVICE = "fsm-agent"
"""Under which the keyring has them."""
KEYRING = "the keyring"
_SECRETS = ("access_token", "refresh_token", "client_secret")


class Login:
    """The login of one home to one server at one address. What it holds is JSON, and is masked in all output
    from then on. ``secrets``: those that it has held."""

    def __init__(self, home: Path, server: str, url: str, secrets: set[str] | None = None) -> None:
        digest = hashlib.sha256(f"{home}\0{url}".encode()).hexdigest()[:16]
        self.secrets = set[str]() if secrets is None else secrets
        self._name = f"mcp/{server}/{digest}"
        self._path = home / LOGINS / f"{server}-{digest}.json"

    def read(self) -> dict[str, Any]:
        """Return what is kept; empty without a login, and for one that cannot be read."""
        text = _in_keyring("get_password", self._name)[1]
        if text is None and self._path.is_file():
            text = self._path.read_text(encoding="utf-8", errors="replace")
        try:
            kept = json.loads(text or "{}")
        except ValueError:
            kept = {}
        found: dict[str, Any] = kept if isinstance(kept, dict) else {}
        self._keep(found)
        return found

    def write(self, kept: dict[str, Any]) -> str:
        """Keep it, and say where."""
        self._keep(kept)
        text = json.dumps(kept)
        if _in_keyring("set_password", self._name, text)[0]:
            self._path.unlink(missing_ok=True)
            return KEYRING
        private_folder(self._path.parent)
        replace_file(self._path, text.encode(), FILE)
        return str(self._path)

    def forget(self) -> bool:
        """Remove it; whether there was one."""
        there = bool(self.read())
        self._path.unlink(missing_ok=True)
        _in_keyring("delete_password", self._name)
        return there

    def _keep(self, kept: dict[str, Any]) -> None:
        self.secrets.update(_secrets_in(kept))
        keep_secret(self.secrets)


def _secrets_in(kept: dict[str, Any]) -> list[str]:
    tables = [one for one in kept.values() if isinstance(one, dict)]
    return [str(table[name]) for table in tables for name in _SECRETS if table.get(name)]


def _in_keyring(do: str, *words: str) -> tuple[bool, str | None]:
    """Whether the keyring did it, and what it answered."""
    if find_spec("keyring") is None:
        return False, None
    import keyring
    from keyring.errors import KeyringError

    try:
        return True, getattr(keyring, do)(SERVICE, *words)
    except KeyringError:
        return False, None
