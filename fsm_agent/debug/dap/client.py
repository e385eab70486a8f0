"""How the editor at the other end counts lines and spells paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from fsm_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Client:
    """``first_line`` and ``first_column`` are 0 or 1; ``uris``: paths are file addresses."""

    first_line: int = 1
    first_column: int = 1
    uris: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Client:
        lines, columns = arguments.get("linesStartAt1", True), arguments.get("columnsStartAt1", True)
        return cls(int(bool(lines)), int(bool(columns)), arguments.get("pathFormat") == "uri")

    def line(self, line: int) -> int:
        """Ours, from 1, as the editor's."""
        return line - 1 + self.first_line

    def column(self, column: int) -> int:
        return column - 1 + self.first_column

    def our_line(self, line: int) -> int:
        """The editor's as ours, from 1."""
        return line + 1 - self.first_line

    def our_column(self, column: int) -> int:
        return column + 1 - self.first_column

    def source(self, path: Path) -> dict[str, Any]:
        return {"name": f"{path.parent.name}/{path.name}", "path": path.as_uri() if self.uris else str(path)}

    def path(self, source: Mapping[str, Any]) -> str:
        """Where a source that the editor names is. Raises ``ConfigError`` for one without a path."""
        path = source.get("path")
        if not isinstance(path, str) or not path:
            raise ConfigError("a source has no path", source.get("name"), "a file")
        return url2pathname(unquote(urlsplit(path).path)) if self.uris else path
