"""``fsm-agent examples``: the example programs, to be run and changed."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

from rich.text import Text

import fsm_agent
from fsm_agent.cli.screen import console_of
from fsm_agent.errors import ConfigError

LEFT_OUT = ("__pycache__",)


def copy_examples(folder: str) -> int:
    """Write the example programs into a new folder; returns the exit code."""
    source, to = _source(), Path(folder)
    if to.exists():
        raise ConfigError("this is there already", folder, "the name of a new folder")
    try:
        shutil.copytree(source, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    except OSError as error:
        raise ConfigError(f"the examples cannot be written ({error.strerror or error})", folder) from None
    console = console_of(sys.stdout)
    for program in sorted(to.glob("*.py")):
        about = ast.get_docstring(ast.parse(program.read_text("utf-8"))) or ""
        first, _, _ = about.partition("\n\n")
        console.print(Text.assemble((str(program), "bold"), "  ", " ".join(first.split())))
    return 0


def _source() -> Path:
    """In the package where it was built, beside it where it is used from its own folder."""
    package = Path(fsm_agent.__file__).parent
    return next(
        (one for one in (package / "examples", package.parent / "examples") if one.is_dir()),
        package / "examples",
    )
