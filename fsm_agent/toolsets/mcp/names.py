"""The names under which a model sees the tools of MCP servers."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

MOST = 64
"""Characters of a function's name that every provider takes."""
SEPARATOR = "__"
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_DIGITS = 8


def names_of(server: str, tools: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """A name for each tool of a server, valid for every provider and different from each other and from
    ``taken``.

    It is ``server__tool`` where that can be used. Where it cannot (too long, taken, or several tools come to
    it by the characters that are replaced), it ends with a digest of the real name, so it is the same in
    every run and on every machine."""
    plain = {tool: f"{server}{SEPARATOR}{_REFUSED.sub('_', tool)}" for tool in tools}
    claims = Counter(plain.values())
    return {
        tool: name if _usable(server, tool, name, claims, taken) else _digested(server, tool, name)
        for tool, name in plain.items()
    }


def _usable(server: str, tool: str, name: str, claims: Mapping[str, int], taken: Collection[str]) -> bool:
    """A name that several tools claim belongs to the one that has it without any change."""
    unchanged = name == f"{server}{SEPARATOR}{tool}"
    return len(name) <= MOST and name not in taken and (unchanged or claims[name] == 1)


def _digested(server: str, tool: str, name: str) -> str:
    digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:_DIGITS]
    return f"{name[: MOST - _DIGITS - 1]}_{digest}"


def server_of(name: str) -> str:
    """The server that a name belongs to; names of servers hold no separator."""
    return name.partition(SEPARATOR)[0]
