"""A module whose import waits at a gate. ``python -m tests.helpers.slow_import SCENE``: turns meanwhile."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
import time
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Self

from tests.helpers.waiting import until_so

LIMIT = 5.0
"""Seconds after which the gate gives way to a loop that is held up by the import and cannot open it."""


class SlowImport(MetaPathFinder, Loader):
    """The import of ``name`` sets ``begun`` and waits for ``go``. ``opened``: for each import, was the gate
    opened in time? An import raises the first of ``raises``. ``real``: the module of that name, else an empty
    one."""

    def __init__(self, name: str, *, real: bool = False) -> None:
        self.name, self.real = name, real
        self.begun, self.go = threading.Event(), threading.Event()
        self.opened: list[bool] = []
        self.raises: list[BaseException] = []
        self._loader: Any = None

    def __enter__(self) -> Self:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        if not self.real:
            sys.modules.pop(self.name, None)

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        if not self.real:
            return ModuleSpec(fullname, self)
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        sys.meta_path.insert(0, self)
        assert spec is not None
        self._loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        self.begun.set()
        self.opened.append(self.go.wait(LIMIT))
        if self.raises:
            raise self.raises.pop(0)
        if self._loader is not None:
            self._loader.exec_module(module)


class Ticker:
    """``longest``: seconds between two moments in which the loop had time for others."""

    def __init__(self) -> None:
        self.longest, self.count, self._task = 0.0, 0, asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            self.longest, self.count, last = max(self.longest, now - last), self.count + 1, now

    async def more(self, ticks: int = 50) -> None:
        goal = self.count + ticks
        while self.count < goal:
            await asyncio.sleep(0.001)

    def stop(self) -> None:
        self._task.cancel()


async def scene(name: str) -> dict[str, Any]:
    from fsm_agent import Agent
    from fsm_agent.testing import ScriptedServer, text

    ticker = Ticker()
    with SlowImport("openai", real=True) as gate, ScriptedServer([text("one"), text("two")]) as server:
        first, second = (Agent("local:any", base_url=server.url, toolsets=[]) for _ in range(2))
        turns = [asyncio.ensure_future(first.arun("go"))]
        await until_so(gate.begun.is_set, "the import")
        if name == "cancelled":
            turns.pop().cancel()
            await ticker.more()
        turns.append(asyncio.ensure_future(second.arun("go")))
        await ticker.more()
        waiting = not any(turn.done() for turn in turns)
        gate.go.set()
        results = [await turn for turn in turns]
        ticker.stop()
        await first.aclose()
        await second.aclose()
    answers = sorted(str(result.final_response) for result in results)
    found = {"answers": answers, "asked": server.completions, "opened": gate.opened}
    return {**found, "waiting": waiting, "longest": ticker.longest}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(scene(sys.argv[1]))))
