"""The SDKs, each imported once in a process and never by an event loop.

An import takes half a second, on a busy machine many, in which a loop that did it would look at no limit and
hear no interrupt. ``sys.modules`` is no sign that a module can be used: it is there from the beginning of its
import, and whoever imports it then waits for the thread that is at it. (Why: decision 54.)
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from concurrent.futures import Future
from types import ModuleType

_begun: dict[str, Future[ModuleType]] = {}
"""Imports by name, under way or done. One that failed is taken out, so that who asks next begins another."""
_BEGIN = threading.Lock()
_ONE_BY_ONE = threading.Lock()
"""SDKs share libraries, and threads that import the same ones may see each other's half-made modules."""


async def sdk_module(name: str) -> ModuleType:
    """The module ``name``, shared by all who wait for it in any loop; without waiting once it is there.

    The import goes on when a waiter is cancelled. Raises ``ImportError`` that says what went wrong; the next
    call tries again.
    """
    module = _begun.get(name)
    if module is not None and module.done():
        return module.result()
    return await asyncio.wrap_future(_import_of(name))


def _import_of(name: str) -> Future[ModuleType]:
    with _BEGIN:
        module = _begun.get(name)
        if module is None:
            module = _begun[name] = Future()
            module.set_running_or_notify_cancel()  # from now on a waiter that is cancelled cannot cancel it
            label = f"fsm-agent-import-{name}"
            threading.Thread(target=_load, args=(name, module), daemon=True, name=label).start()
    return module


def _load(name: str, module: Future[ModuleType]) -> None:
    try:
        with _ONE_BY_ONE:
            loaded = importlib.import_module(name)
    except BaseException as error:  # whatever it is, somebody waits
        del _begun[name]
        what = f"the SDK {name!r} cannot be imported: {type(error).__name__}: {error}"
        failed = ImportError(what, name=name)
        failed.__cause__ = error
        module.set_exception(failed)
    else:
        module.set_result(loaded)
