"""A file of the home with rows of JSON, which several processes read and write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsm_agent.support.atomic_write import replace_file
from fsm_agent.support.file_lock import locked
from fsm_agent.support.private_files import FILE, private_folder

MOST_BYTES = 1_000_000


class HomeRows:
    """The rows of the file ``path``, under ``name``. Who writes holds a lock and replaces the file."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self._name = path, name

    def read(self) -> list[Any]:
        """Return what there is; what cannot be read is nothing. Whoever could write into the home could also
        write this."""
        try:
            with open(self.path, encoding="utf-8") as file:
                listed = json.loads(file.read(MOST_BYTES))[self._name]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return []
        return listed if isinstance(listed, list) else []

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let nobody else write in this block. Raises ``OSError`` and ``TimeoutError``."""
        private_folder(self.path.parent)
        with locked(self.path.with_name(f"{self.path.name}.lock")):
            yield

    def write(self, rows: Iterable[Any]) -> None:
        """Replace what there is. Raises ``OSError``."""
        replace_file(self.path, json.dumps({self._name: list(rows)}, indent=1).encode(), mode=FILE)
