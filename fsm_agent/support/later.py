"""Lazy imports, and allocation of long-lived objects without the garbage collector."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Later:
    """A module by its full name, imported on first attribute access. ``TYPE_CHECKING`` imports the real
    module under the same name, so that types are still checked."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(load_module(self._module), name)
        setattr(self, name, value)
        return value


def load_module(module: str) -> ModuleType:
    """Import a module with the garbage collector paused: what stays would only be walked again."""
    with without_collection():
        return importlib.import_module(module)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector if it runs. Imports live as long as the process, and a long history as
    long as its session: scanning them repeatedly while they grow would take a fifth of the time. Not for
    code that waits: other tasks and threads keep running."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
