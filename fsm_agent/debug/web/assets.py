"""The files of the page, read once: nothing else can be asked for, whatever a path says."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page: its content, media type, and a tag that changes with it."""

    body: bytes
    type: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """By their path below ``static``, with slashes."""
    found: dict[str, Asset] = {}
    _gather(files("fsm_agent.debug.web") / "static", "", found)
    return found


def _gather(folder: Traversable, above: str, found: dict[str, Asset]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _gather(entry, f"{above}{entry.name}/", found)
            continue
        ending = "." + entry.name.rpartition(".")[2]
        if ending in TYPES:
            body = entry.read_bytes()
            found[above + entry.name] = Asset(
                body, TYPES[ending], f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            )
