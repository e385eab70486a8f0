"""Keep a directory of generated files fresh: write them, or name those that differ from what the table says now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fsm_agent.diagram import FORMATS, Layout, render
from fsm_agent.table import Table


def files(table: Table, layout: Layout | None = None, proof_lines: Sequence[str] = ()) -> Mapping[str, str]:
    """Name and content of every generated file: ``turn.svg``, ``turn.md`` ..."""
    return {
        f"{table.name}.{ending}": render(table, format, layout=layout, proof_lines=proof_lines)
        for format, ending in FORMATS.items()
    }


def stale(directory: Path, table: Table, layout: Layout | None = None, proof_lines: Sequence[str] = ()) -> list[str]:
    """Names of the files in ``directory`` that are missing or differ from freshly rendered ones."""
    return list(_differing(directory, files(table, layout, proof_lines)))


def write(directory: Path, table: Table, layout: Layout | None = None, proof_lines: Sequence[str] = ()) -> list[str]:
    """Write what is stale into ``directory``, which is made if need be; the names of the written files."""
    differing = _differing(directory, files(table, layout, proof_lines))
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in differing.items():
        (directory / name).write_bytes(content)
    return list(differing)


def _differing(directory: Path, fresh: Mapping[str, str]) -> dict[str, bytes]:
    wanted = {name: text.encode() for name, text in fresh.items()}
    return {name: content for name, content in wanted.items() if _read(directory / name) != content}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
