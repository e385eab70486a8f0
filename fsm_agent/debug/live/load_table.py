"""A program: load one table from a module's text, and print it as JSON.

It waits for its order, so that by the time of a save all that every table needs is imported. The order is one
line: ``{"path", "name", "text"}``, the text in base64, so that what is loaded is what was read. The answer is
``{"table", "limits"}``, or ``{"reason", "line"}`` of what went wrong, with the last line of the module that
was at work."""

from __future__ import annotations

import base64
import importlib
import importlib.machinery
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from fsm_agent.diagram.table_json import default_limits, describe, load

WARM = ("fsm_agent.conversation.effects", "fsm_agent.fsm.properties", "fsm_agent.settings.model")
"""What default limits of the turn need: the slow part of loading it."""


def main() -> int:
    """Load, and answer on the standard output that was there at the start."""
    for name in WARM:
        importlib.import_module(name)
    order = json.loads(sys.stdin.buffer.readline())
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the module prints is no answer
    path = str(Path(order["path"]).resolve())
    _read_from_memory(path, base64.b64decode(order["text"]))
    try:
        target = f"{path}:{order['name']}" if order["name"] else path
        table = load([str(Path(path).parent)], target)
        limits = default_limits(table) if getattr(table, "default_limits", None) else None
        found: dict[str, Any] = {"table": describe(table), "limits": limits}
    except BaseException as error:  # the module may raise anything, SystemExit included
        found = {"reason": _reason(error), "line": _line(error, path)}
    with answer:
        json.dump(found, answer)
    return 0


def _read_from_memory(path: str, text: bytes) -> None:
    """Let imports take this text for the file at ``path``, and no compiled one."""
    loader = importlib.machinery.SourceFileLoader
    data, stats = loader.get_data, loader.path_stats

    def get_data(self: Any, name: str) -> bytes:
        return text if name == path else data(self, name)

    def path_stats(self: Any, name: str) -> Any:
        if name == path:
            raise OSError("this text is in memory")
        return stats(self, name)

    loader.get_data, loader.path_stats = get_data, path_stats  # type: ignore[assignment]


def _reason(error: BaseException) -> str:
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}"


def _line(error: BaseException, path: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None


if __name__ == "__main__":
    sys.exit(main())
