"""Keep a directory of generated files fresh: write them, or name those that differ from what the table says
now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fsm_agent.diagram import FORMATS, Layout, render, written
from fsm_agent.diagram.layout import map_of
from fsm_agent.diagram.proof import proof_lines, proof_page
from fsm_agent.fsm.table import Table


def files(
    table: Table, layout: Layout | None = None, limits: Mapping[str, int] | None = None
) -> Mapping[str, str]:
    """Name and content of every generated file: ``turn.svg``, ``turn.md`` ..., the map
    ``turn-map.svg``, and ``turn.proofs.md`` with
    figures for ``limits``."""
    proofs = proof_lines(table)
    drawn = {
        f"{table.name}.{end}": render(table, name, layout=layout, proof_lines=proofs)
        for name, end in FORMATS.items()
    }
    small, places = map_of(table)
    return {
        **drawn,
        f"{table.name}-map.svg": written(small, "svg", places),
        f"{table.name}.proofs.md": proof_page(table, limits),
    }


def stale(directory: Path, fresh: Mapping[str, str]) -> list[str]:
    """Names of the files in ``directory`` that are missing or differ from ``fresh`` ones."""
    return list(_differing(directory, fresh))


def write(directory: Path, fresh: Mapping[str, str]) -> list[str]:
    """Write what is stale into ``directory``, which is made if need be; the names of the written files."""
    differing = _differing(directory, fresh)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in differing.items():
        (directory / name).write_bytes(content)
    return list(differing)


def _differing(directory: Path, fresh: Mapping[str, str]) -> dict[str, bytes]:
    wanted = {name: text.encode() for name, text in fresh.items()}
    return {name: content for name, content in wanted.items() if _read(directory / name) != content}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
