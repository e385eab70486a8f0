"""``fsm-agent report``: one masked file about a turn, and what a file of another user says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fsm_agent.backtest.turn_report import MOST_BYTES, TurnReport, of_this_table, read_report, report_of
from fsm_agent.cli.options import Home
from fsm_agent.cli.screen import clean, count, put, screen
from fsm_agent.cli.session_files import write_lines
from fsm_agent.cli.sessions import store_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.verify.report import fold
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.sessions.store.names import any_turn
from fsm_agent.support.redaction import environment_keys


def report(
    name: Annotated[
        str | None, typer.Argument(metavar="TURN", help="A turn, or a session for its newest one.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Default: standard output.")
    ] = None,
    show: Annotated[
        str | None, typer.Option(metavar="FILE", help="Print what a report says, and replay it.")
    ] = None,
    pytest: Annotated[
        bool, typer.Option("--pytest", help="With --show: print the turn as a test instead.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="With all replies, not only those that its end needs.")
    ] = False,
    home: Home = None,
) -> int:
    """Write one masked file about a turn, from which others can replay it.

    The file has the replies that the end of the turn needs, its settings and its prompt. Secrets are masked.
    Nothing in a file is executed when it is shown: the replies are played to the states of this version.
    """
    if (name is None) == (show is None):
        raise ConfigError(
            "a report is written of a turn, or shown", name or "neither", "TURN, or --show FILE"
        )
    if show is not None:
        return _show(show, pytest, output)
    if pytest:
        raise ConfigError("a test is made of a report", "--pytest", "--pytest with --show FILE")
    store = store_of(home)
    keys = [os.environ.get(profile.key_env or "", "") for profile in PROFILES.values()]
    made = report_of(
        store, any_turn(store, str(name)), whole=whole, secrets={*keys, *environment_keys(os.environ)}
    )
    _write(made.to_text(), output)
    if output is not None:
        shrunk = f", {count(made.shrunk, 'model answer')} left out" if made.shrunk else ""
        why = f"; it cannot be replayed: {made.note}" if made.note else ""
        print(f"turn {made.turn} in {output}, secrets masked{shrunk}{clean(why)}", file=sys.stderr)
    return 0


def _show(path: str, pytest: bool, output: str | None) -> int:
    """Print a report and replay it: 1 if it does not come out as it says."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the report cannot be read ({error})", path) from None
    found = read_report(text, path)
    if pytest:
        _write(found.as_test(), output)
        return 0
    other = found.replay()
    put(screen(), *_lines(found, other))
    return int(bool(other))


def _write(text: str, output: str | None) -> None:
    if output is None or output == "-":
        sys.stdout.write(text)
    else:
        write_lines(Path(output), iter(text.splitlines()))


def _lines(found: TurnReport, other: str) -> Iterator[Text]:
    ours = "the table of this version" if of_this_table(found) else f"another table ({found.table})"
    yield Text(clean(f"{found.turn}: {found.asked}"), "bold")
    yield Text(clean(f"  fsm-agent {found.version}, Python {found.python}, {found.system}; {ours}"))
    yield Text(clean(f"  {count(len(found.moves), 'move')}: {_path(found.moves)}"))
    yield Text(clean(f"  ended with {found.exit or 'nothing yet'} ({found.outcome or 'unfinished'})"))
    for label, text in (
        ("answer", found.answer),
        ("error", found.error),
        *(("bug", bug) for bug in found.bugs),
    ):
        if text:
            yield Text(clean(f"  {label}: {text}"))
    if one := found.recording:
        settings = ", ".join(sorted(one.settings)) or "none"
        yield Text(clean(f"  settings that differ from their defaults: {settings}"))
        left_out = f", {found.shrunk} left out" if found.shrunk else ""
        replies = f"{count(len(one.model), 'model answer')}{left_out}"
        yield Text(clean(f"  recording: {replies}: {_path(one.moves)}"))
    if other:
        yield Text(clean(f"  replayed: not as recorded: {other}"), "red")
    else:
        yield Text("  replayed: the same moves, the same answer", "green")


def _path(moves: list[str]) -> str:
    return " → ".join(map(str, fold(moves)))
