"""The command line. ``import fsm_agent`` loads none of it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

SELDOM = 200_000
"""Allocations between two garbage collections. A command makes half as many and keeps them; scanning them
repeatedly would take a fifth of its first second."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 completed, 1 failed, 2 wrong use, 3 partial, 4 suspended, 130
    interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:  # needs no parser
        from fsm_agent.support import __version__

        print(f"fsm-agent {__version__}")
        return 0
    before = gc.get_threshold()
    gc.set_threshold(SELDOM, *before[1:])
    try:
        from fsm_agent.cli.app import main

        return main(words)
    except KeyboardInterrupt:  # before ``main`` could catch it
        return 130
    finally:
        gc.set_threshold(*before)


__all__ = ["main"]
