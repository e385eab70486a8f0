"""``fsm-agent diagram --live``: the page of a table that is being written."""

from __future__ import annotations

import re
import sys
import webbrowser
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fsm_agent.backtest.predict import Observed, drawn, observe, requests_in
from fsm_agent.backtest.run import Backtest
from fsm_agent.cli.debug import end_in_order
from fsm_agent.cli.screen import dollars
from fsm_agent.cli.sessions import store_of
from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.debug.live.page import LivePage
from fsm_agent.debug.live.watched import Watched
from fsm_agent.debug.web.app import PageServer
from fsm_agent.errors import ConfigError, FsmAgentError
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Table

ALLOWED = "path.py, path.py:NAME, or module:NAME below the current directory"
RECORDED = 300
"""Recorded turns that a prediction learns from, the newest."""
DRAWN = 500
"""Turns that are drawn for each prediction."""


def serve_table(where: str, port: int = 0, home: str | None = None) -> int:
    """Serve the page until interrupted. Raises ``ConfigError`` for a file that is not there."""
    path, name = find_table(where, Path.cwd())
    watched = Watched(path, name, Predictor(home))
    try:
        server = PageServer(lambda at, token: LivePage(watched, (token,)).app(at, token), port)

        def ready() -> None:
            print(server.url, flush=True)
            if sys.stdout.isatty():
                webbrowser.open(server.url)

        end_in_order()
        watched.start()
        server.run(ready)
    finally:
        watched.close()
    return 130  # served until interrupted


def find_table(where: str, folder: Path) -> tuple[Path, str]:
    """The file of ``path.py``, ``path.py:NAME`` or ``module:NAME``, and the name. Raises ``ConfigError``."""
    found = re.fullmatch(r"(.+\.py)(?::(\w+))?", where)
    if found is not None:
        return _there(folder / found[1], where), found[2] or ""
    module = re.fullmatch(r"([\w.]+):(\w+)", where)
    if module is None or (folder / where).exists():
        raise ConfigError("only a table in Python is watched", where, ALLOWED)
    inside = Path(*module[1].split("."))
    for root in (folder, folder / "src", folder / "states", *map(Path, sys.path)):
        for file in (root / inside.with_suffix(".py"), root / inside / "__init__.py"):
            if file.is_file():
                return file, module[2]
    raise ConfigError("there is no such module", where, ALLOWED)


def _there(path: Path, where: str) -> Path:
    if not path.is_file():
        raise ConfigError("there is no such file", where, ALLOWED)
    return path


class Predictor:
    """What turns of a version of the agent's table will do, learned from the newest turns of the home."""

    def __init__(self, home: str | None) -> None:
        self._home = home
        self._observed: list[Observed] | None = None

    def __call__(self, table: Table) -> Mapping[str, Any] | None:
        """The figures; ``None`` for another table, and where nothing is recorded."""
        if table.name != TURN.name:
            return None
        if self._observed is None:
            self._observed = self._observe()
        if not self._observed:
            return None
        try:
            turns = drawn(self._observed, machine=Machine(table), turns=DRAWN)
        except FsmAgentError:  # an event that turns reported has no row any more
            return None
        requests = fmean(map(requests_in, turns))
        asked = sum(one.requests for one in self._observed) or 1
        costs = [one.cost for one in self._observed if one.cost is not None]
        figures = {"requests": f"{requests:.2f}", "moves": f"{fmean(map(len, turns)):.2f}"}
        figures["tokens"] = f"{requests * sum(one.tokens for one in self._observed) / asked:,.0f}"
        if len(costs) == len(self._observed):
            figures["cost"] = dollars(requests * sum(costs) / asked)
        named = [{"name": name, "value": value} for name, value in figures.items()]
        return {"turns": len(self._observed), "figures": named}

    def _observe(self) -> list[Observed]:
        try:
            tests = Backtest.of(store_of(self._home))
            return observe(replace(tests, turns=tests.turns[-RECORDED:]), {})[0]
        except ConfigError:  # nothing is recorded here
            return []
