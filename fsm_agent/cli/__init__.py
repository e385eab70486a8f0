"""The command line. Nothing of it is loaded by ``import fsm_agent``."""

from __future__ import annotations

import gc
from collections.abc import Sequence

SELDOM = 200_000
"""Objects that are made before the garbage collector looks again: a command makes half as many, which
stay as long as it runs, and looking through them again and again takes a fifth of its first second."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 completed, 1 failed, 2 wrong use, 3 partial, 130
    interrupted."""
    before = gc.get_threshold()
    gc.set_threshold(SELDOM, *before[1:])
    try:
        from fsm_agent.cli.entry import main

        return main(arguments)
    finally:
        gc.set_threshold(*before)


__all__ = ["main"]
