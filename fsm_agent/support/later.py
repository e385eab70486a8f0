"""Loading modules when they are first used, and making much that stays without the garbage collector."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Later:
    """A module by its full name, which is loaded when something of it is first asked for. Where it is made,
    ``TYPE_CHECKING`` imports the module itself under the same name, so that types are checked as ever."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(loaded(self._module), name)
        setattr(self, name, value)
        return value


def loaded(module: str) -> ModuleType:
    """Import a module and return it."""
    with uncollected():
        return importlib.import_module(module)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from running, where it runs. What imports make stays as long as the process,
    and what is read of a long history as long as its session: looking through all of it again and again while
    it grows would take a fifth of the time. Not for what waits: other tasks and threads go on."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
