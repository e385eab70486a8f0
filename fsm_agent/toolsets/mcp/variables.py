"""``${VAR}`` in a server's config, the environment that a server is given, and which values are secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie|session", re.IGNORECASE)
_POSIX = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_WINDOWS = (
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE", "PROGRAMDATA",
    "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
_PASSED_ON = _WINDOWS if os.name == "nt" else _POSIX
"""What a program needs to find its files and to speak the user's language; nothing in it is a secret."""


class Unset(Exception):
    """A variable that the config names has no value here; the text says which."""


def expanded(text: str, environment: Mapping[str, str], found: set[str]) -> str:
    """The text with its variables replaced; their values are added to ``found``. Raises ``Unset``."""

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        given = environment.get(name) or default
        if given is None:
            raise Unset(f"${{{name}}} is not set in the environment")
        found.add(given)
        return given

    return _VARIABLE.sub(value, text)


def all_expanded(words: Mapping[str, str], environment: Mapping[str, str], found: set[str]) -> dict[str, str]:
    """Return the words with variables replaced by their values; ``found`` takes the values used."""
    return {name: expanded(text, environment, found) for name, text in words.items()}


def safe_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of ``environment`` that a server gets without being given anything: no key, no token, no
    proxy."""
    names = (*_PASSED_ON, *(name for name in environment if name.startswith("LC_")))
    return {
        name: environment[name]
        for name in names
        if name in environment and not environment[name].startswith("()")
    }


def secret_values(words: Mapping[str, str]) -> Iterable[str]:
    """Those values whose names sound like secrets. Of ``Bearer x`` the ``x`` is one too."""
    for name, value in words.items():
        if _SECRET_NAME.search(name):
            yield value
            yield from value.split()[1:]
