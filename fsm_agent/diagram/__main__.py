"""``python -m fsm_agent.diagram [--check] DIRECTORY``: write the generated files, or fail when they are
stale."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from fsm_agent.diagram import FORMATS, render, written
from fsm_agent.diagram.layout import map_of
from fsm_agent.diagram.proof import proof_lines, proof_page
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.layout import Layout
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.reach import all_limit_names

TABLE = "fsm_agent_states.table:TURN"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: written, or up to date. 1: ``--check`` found stale files. 2: a name does not lead to a table
    or a layout."""
    parser = argparse.ArgumentParser(prog="python -m fsm_agent.diagram", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    parser.add_argument("--table", default=TABLE, metavar="MODULE:NAME", help=f"default: {TABLE}")
    parser.add_argument("--layout", metavar="MODULE:NAME", help="default: the table's own, else automatic")
    figures = "a mapping that the figures of the proofs page are for; default: the table's own"
    parser.add_argument("--limits", metavar="MODULE:NAME", help=figures)
    options = parser.parse_args(arguments)
    try:
        table, layout = _load(options.table, options.layout)
        limits = _limits(table, options.limits)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    fresh = files(table, layout, limits)
    if options.check:
        names = stale(options.directory, fresh)
        for name in names:
            print(f"stale: {options.directory / name} (run: {_command(options)})")
        return 1 if names else 0
    for name in write(options.directory, fresh):
        print(f"written: {options.directory / name}")
    return 0


def _command(options: argparse.Namespace) -> str:
    """Return the command that regenerates the checked files."""
    named = {
        "--table": options.table if options.table != TABLE else None,
        "--layout": options.layout,
        "--limits": options.limits,
    }
    given = [part for option, value in named.items() if value for part in (option, value)]
    return shlex.join(["python", "-m", "fsm_agent.diagram", str(options.directory), *given])


def _limits(table: Table, name: str | None) -> Mapping[str, int] | None:
    if name is None:
        return table.default_limits() if table.default_limits else None
    limits = _attribute(name)
    if not isinstance(limits, Mapping) or not all(type(value) is int for value in limits.values()):
        raise ConfigError(
            "these are not limits", name, "module:attribute of a mapping of names to whole numbers"
        )
    if missing := sorted(set(all_limit_names(table)) - set(limits)):
        raise ConfigError("limits are missing", ", ".join(missing), f"all of them in {name}")
    return limits


def _load(table_name: str, layout_name: str | None) -> tuple[Table, Layout | None]:
    table = _attribute(table_name)
    if not isinstance(table, Table):
        raise ConfigError("not a transition table", table_name, "module:attribute of a Table")
    return table, cast(Layout, _attribute(layout_name)) if layout_name else table.layout


def _attribute(name: str) -> object:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"cannot load ({error})", name, "module:attribute") from error


# ----------------------------------------------------------------------------------------------------
# Keeping a directory of generated files up to date: write them, or list those that differ from the current
# table.


def files(
    table: Table, layout: Layout | None = None, limits: Mapping[str, int] | None = None
) -> Mapping[str, str]:
    """Return name and content of every generated file: ``turn.svg``, ``turn.md`` ..., the map
    ``turn-map.svg``, and ``turn.proofs.md`` with figures for ``limits``."""
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
    """Return the names of the files in ``directory`` that are missing or differ from ``fresh``."""
    return list(_differing(directory, fresh))


def write(directory: Path, fresh: Mapping[str, str]) -> list[str]:
    """Write stale files into ``directory``, creating it if necessary; return their names."""
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


if __name__ == "__main__":
    sys.exit(main())
