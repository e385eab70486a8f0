"""Helpers that know nothing of agents: files, threads, text, redaction. This module has what every room may
need: the version, and a pause of the garbage collector for imports and long-lived objects."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

__version__ = "0.1.0"


def load_module(module: str) -> ModuleType:
    """Import a module with the garbage collector paused: scanning objects that stay is wasted work."""
    with without_collection():
        return importlib.import_module(module)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector if it runs. Imports live as long as the process, and a long history as long
    as its session: scanning them repeatedly while they grow would take a fifth of the time. Do not use it
    around code that waits: other tasks and threads keep running."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
