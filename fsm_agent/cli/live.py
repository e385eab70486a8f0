"""The part of ``fsm-agent backtest`` that asks models: what it costs at most, the question, the forks."""

from __future__ import annotations

import html
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress
from rich.text import Text

from fsm_agent.backtest.live import KINDS, Ending, Fork, Live, Place, Purse, places, refuse_unsafe, scratch
from fsm_agent.backtest.playback import Change
from fsm_agent.backtest.report import MOST
from fsm_agent.backtest.run import Found
from fsm_agent.cli.arguments import tools_of
from fsm_agent.cli.models import NO_KEY
from fsm_agent.cli.money import most_of_request
from fsm_agent.cli.screen import WholeTable, clean, console_of, count, dollars, preview, put, screen
from fsm_agent.errors import ConfigError
from fsm_agent.providers.catalog import FREE, price_of
from fsm_agent.providers.config_file import config_of
from fsm_agent.providers.profiles import is_loopback
from fsm_agent.sessions.store import Store
from fsm_agent.settings.model import Settings
from fsm_agent.support.texts import escape_markdown
from fsm_agent.support.threads import LOOP


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """``usd``: the budget. ``model``: another one than the recorded, at ``base_url``. ``where``: the moves to
    fork at. ``tools``: names of pure tools that may run. ``keep``: the folder for the copy of the home.
    ``yes``: do not ask."""

    usd: float | None
    model: str | None = None
    base_url: str | None = None
    where: str | None = None
    tools: Sequence[str] = ()
    keep: str | None = None
    yes: bool = False

    def refuse(self, live: bool, others: Mapping[str, object]) -> None:
        """Raise ``ConfigError`` for options that need ``--live``, or that ``--live`` cannot have."""
        if not live:
            named: dict[str, object] = {
                "--budget": self.usd, "--model": self.model, "--base-url": self.base_url, "--at": self.where,
                "--tool": self.tools, "--keep": self.keep, "--yes": self.yes,
            }  # fmt: skip
            if given := next((name for name, value in named.items() if value), None):
                raise ConfigError("an option is for live backtests only", given, f"--live {given}")
            return
        if self.usd is None:
            raise ConfigError("--live asks a model and needs a budget", None, "--budget USD")
        Purse(self.usd)
        if wrong := next((name for name, value in others.items() if value), None):
            what = "--live continues turns of a home, with the table and the states of this version"
            raise ConfigError(what, wrong, f"no {wrong}")


@dataclass(frozen=True, slots=True)
class LiveFound:
    """The forks, the budget, and what was spent of it, in US dollars."""

    forks: Sequence[Fork]
    usd: float
    spent: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"budget": self.usd, "spent": self.spent, "forks": [one.to_dict() for one in self.forks]}


def continue_turns(store: Store, found: Found, change: Change, given: LiveOptions) -> LiveFound:
    """Fork the turns of a backtest. Raises ``ConfigError`` if the person at the terminal says no, and without
    a terminal or ``--yes``."""
    assert given.usd is not None
    tools = tools_of(given.tools)
    refuse_unsafe(tools)
    where = "CallLLM" if given.where is None and given.model is not None else given.where
    begin = places(store, found.verdicts, change, where)
    if not begin:
        return LiveFound((), given.usd, 0.0)
    _ask(store, begin, change, given)
    with scratch(store, None if given.keep is None else Path(given.keep)) as copy:
        live = Live(copy, change, lambda place: _model(place, given), given.usd, tools)
        with _progress(len(begin)) as advance:
            forks = LOOP.run(live.run(begin, lambda fork: advance()))
    return LiveFound(forks, given.usd, live.spent)


def _model(place: Place, given: LiveOptions) -> dict[str, Any]:
    """The model of a fork. A stored address is believed only on this machine: a key must not go where a
    record says."""
    if given.model is not None:
        return {"model": given.model, "base_url": given.base_url}
    return {
        "model": place.model,
        "base_url": given.base_url or (place.address if is_loopback(place.address) else None),
    }


def _ask(store: Store, begin: Sequence[Place], change: Change, given: LiveOptions) -> None:
    """Print what it costs at most, and ask."""
    config = config_of(store.home)
    settings = Settings.of(change.settings, config.settings)
    total: float | None = 0.0
    for place in begin:
        model = _model(place, given)
        choice = config.chooser(model["model"], model["base_url"], NO_KEY)
        free = price_of(choice.model, choice.profile.name, settings.prices) is FREE
        each = 0.0 if free else most_of_request(choice, settings)
        total = None if each is None or total is None else total + place.most * each
    names = ", ".join(sorted({str(_model(place, given)["model"]) for place in begin}))
    most = max(place.most for place in begin)
    proved = "is not known" if total is None else f"is at most {dollars(total)}"
    print(
        f"Live: {count(len(begin), 'fork')} with {clean(names)}, each of at most {count(most, 'request')}."
        f" Their cost {proved}; the budget ends it at {dollars(given.usd or 0.0)}.",
        file=sys.stderr,
    )
    if given.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError("no person can be asked whether to begin", count(len(begin), "fork"), "--yes")
    print("Begin? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("no model was asked", "no", "y or yes")


def show_live(found: LiveFound) -> None:
    """Print the forks below the report of the backtest."""
    counts = Counter(one.kind for one in found.forks)
    put(
        screen(),
        Text(f"\n{_headline(found)}", "bold"),
        *(Text(f"{counts[kind]:>7,}  {words}") for kind, words in KINDS.items() if counts[kind]),
    )
    if not found.forks:
        return
    grid = WholeTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in _COLUMNS:
        grid.add_column(name, justify="right" if name == "cost" else "left")
    for cells in _rows(found):
        grid.add_row(*(preview(cell, 100) for cell in cells))
    put(screen(), Text(""), grid)
    if len(found.forks) > MOST:
        put(screen(), Text(f"and {len(found.forks) - MOST:,} more", "dim"))


def live_as_markdown(found: LiveFound) -> str:
    """The part of the report for a pull request."""
    lines = ["", f"#### {_headline(found)}", ""]
    if found.forks:
        lines += [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
        lines += [
            f"| {' | '.join(escape_markdown(preview(cell, 100)) for cell in cells)} |"
            for cells in _rows(found)
        ]
    return "\n".join(lines) + "\n"


def live_as_html(found: LiveFound) -> str:
    """The part of the page: each fork beside what was recorded."""
    lines = [f"<h2>{html.escape(_headline(found))}</h2>"]
    for kind, words in KINDS.items():
        forks = [one for one in found.forks if one.kind == kind]
        if forks:
            shown = "".join(map(_html_fork, forks[:MOST]))
            more = f"<p>{len(forks) - MOST:,} more" if len(forks) > MOST else ""
            opened = " open" if kind == found.forks[0].kind else ""
            lines.append(
                f"<details{opened}><summary>{len(forks):,} × {words}</summary>{shown}{more}</details>"
            )
    return "\n".join(lines) + "\n"


def _html_fork(one: Fork) -> str:
    place = f"{one.place.state}, after move {one.place.at}, by {one.model}, {dollars(one.usd)}"
    first = f"; move {one.first} is the first other one" if one.first else ""
    why = f"<p>{html.escape(one.why)}" if one.why else ""
    sides = "".join(
        f"<section><b>{name}</b><p>{html.escape(ending.exit)}, {count(ending.requests, 'request')}"
        f"<p>{html.escape(', '.join(ending.tools))}<p>{html.escape(ending.answer)}</section>"
        for name, ending in (("recorded", one.recorded), ("now", one.now))
        if ending is not None
    )
    head = f"<h3><code>{html.escape(one.place.turn)}</code></h3><p>{html.escape(place + first)}"
    return f"<article>{head}{why}<div class=sides>{sides}</div></article>"


_COLUMNS = ("turn", "from", "recorded", "now", "cost")


def _headline(found: LiveFound) -> str:
    if not found.forks:
        return "Live: no turn has such a place"
    return f"Live: {count(len(found.forks), 'fork')}, {dollars(found.spent)} of {dollars(found.usd)}"


def _rows(found: LiveFound) -> Iterator[tuple[str, ...]]:
    for one in found.forks[:MOST]:
        place = f"{one.place.state}, move {one.place.at + 1}"
        now = one.why or (KINDS[one.kind] if one.now is None else _side(one.now))
        first = f"move {one.first}: " if one.first else ""
        yield (one.place.turn, place, _side(one.recorded), f"{first}{now}", dollars(one.usd))


def _side(ending: Ending | None) -> str:
    if ending is None:
        return ""
    tools = f" ({', '.join(ending.tools)})" if ending.tools else ""
    return f"{ending.exit}{tools}: {ending.answer}"


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    console = console_of(sys.stderr)
    columns = ("asking models", BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task, 1)
