"""The environment of a program that needs none of a person's own variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

_POSIX = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_WINDOWS = (
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT",
    "PROCESSOR_ARCHITECTURE", "PROGRAMDATA",
    "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
PASSED_ON = _WINDOWS if os.name == "nt" else _POSIX
"""What a program needs to find its files and to speak the user's language; nothing in it is a secret."""


def bare_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The part of ``environment`` that a program gets without being given anything: no key, no token, no
    proxy."""
    names = (*PASSED_ON, *(name for name in environment if name.startswith("LC_")))
    return {
        name: environment[name]
        for name in names
        if name in environment and not environment[name].startswith("()")
    }
