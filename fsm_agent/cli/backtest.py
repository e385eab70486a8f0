"""``fsm-agent backtest``: what recorded turns would have done under a change."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from fsm_agent.backtest.playback import Change
from fsm_agent.backtest.report import (
    MOST,
    ORDER,
    as_html,
    as_json,
    as_markdown,
    groups,
    guards,
    headline,
    move,
)
from fsm_agent.backtest.run import Backtest, Found, describe_change, identity
from fsm_agent.backtest.verdict import KINDS, Verdict
from fsm_agent.cli.arguments import nest_settings
from fsm_agent.cli.live import LiveOptions, continue_turns, live_as_html, live_as_markdown, show_live
from fsm_agent.cli.options import BaseUrl, Home, Json, Model, Sets
from fsm_agent.cli.screen import WholeTable, console_of, count, put, screen
from fsm_agent.cli.sessions import store_of
from fsm_agent.diagram.versions.load import unpack_revision, version_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.machine import Machine

RESUMED = "a file that --resume wrote for the same change, or a new one"
NEEDS = "at least one turn that has ended; fsm-agent run records one"


def backtest(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Exports; default: the turns of the home.")
    ] = None,
    sets: Sets = (),  # type: ignore[assignment]
    prompt: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A system prompt; {recorded} in it is that of the turn."),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="JSON: by tool, a new description or new parameters; null removes it."
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="VERSION", help="A table: a git revision, a file, module:table.")
    ] = None,
    states: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="States: a git revision, or a folder with the package."),
    ] = None,
    session: Annotated[str | None, typer.Option(help="Only turns of this session.")] = None,
    exit: Annotated[str | None, typer.Option(metavar="REASON", help="Only turns that ended so.")] = None,
    days: Annotated[float | None, typer.Option(help="Only turns of the last days.")] = None,
    sample: Annotated[int | None, typer.Option(metavar="N", help="Play N turns, chosen at random.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one a core.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Keep verdicts here, and begin with those that are there."),
    ] = None,
    most: Annotated[
        str,
        typer.Option(metavar="N[%]", help="Turns that may differ; with more, the exit status is 1."),
    ] = "0",
    same_requests: Annotated[
        bool, typer.Option("--same-requests", help="Different requests count, too.")
    ] = False,
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the report for a pull request.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write the report as one page.")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Where a recording ends, let a model continue a fork of the turn.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(metavar="USD", help="US dollars that all forks may cost.")
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Fork every turn there: STATE, STATE:VISIT, or after N moves."),
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option(metavar="MODULE:NAME", help="A pure tool that forks may run.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep the copy of the home with the forks.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Begin forks without asking.")] = False,
    as_json_: Json = False,
    home: Home = None,
) -> int:
    """Play recorded turns under a change, and compare.

    No model and no tool is called: every reply comes from the journal. With --live a model continues forks
    in a copy of the home, under a budget. The exit status is 1 when more turns differ than allowed.
    """
    allowed = _share(most)
    going = LiveOptions(budget, model, base_url, at, tool or (), keep, yes)
    going.refuse(live, {"FILE": files, "--table": table, "--states": states})
    change = Change(nest_settings(sets), _text(prompt), _schemas(tools), _machine(table))
    with ExitStack() as stack:
        folder = stack.enter_context(_states(states))
        sources = _sources(stack, files or (), home, session, exit, days)
        if not any(one.turns for one in sources):
            raise ConfigError("there is no recorded turn to play", ", ".join(files or ()) or None, NEEDS)
        if sample is not None:
            sources = _sample(sources, sample, seed)
        found = _judge_all(sources, change, folder, jobs, resume)
        forks = continue_turns(sources[0].store, found, change, going) if live else None
    if markdown is not None:
        more = "" if forks is None else live_as_markdown(forks)
        _write(markdown, as_markdown(found) + more)
    if html is not None:
        _write(html, as_html(found) + ("" if forks is None else live_as_html(forks)))
    if as_json_:
        print(as_json(found, None if forks is None else forks.to_dict()))
    else:
        _show(found)
        if forks is not None:
            show_live(forks)
    other = len(found.of("differs", "missing", *(("requests",) if same_requests else ())))
    judged = found.total - found.counts["refused"]
    return int(not judged or other > allowed(judged))


def _share(text: str) -> Callable[[int], float]:
    """The number that ``N`` or ``N%`` is, of a number of turns. Raises ``ConfigError``."""
    number = text.removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise ConfigError(
            "--most cannot be read", text, "a number of turns, such as 5, or a share, such as 2%"
        )
    return (lambda turns: turns * value / 100) if text.endswith("%") else (lambda turns: value)


def _read(path: str, what: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{what} cannot be read ({error})", path, "a text file") from None


def _text(path: str | None) -> str | None:
    return None if path is None else _read(path, "the prompt").rstrip("\n")


def _schemas(path: str | None) -> Mapping[str, Mapping[str, Any] | None]:
    if path is None:
        return {}
    allowed = '{"tool": {"description": "…", "parameters": {…}}, "another": null}'
    try:
        found = json.loads(_read(path, "the file of tools"))
    except ValueError as error:
        raise ConfigError(f"the file of tools is no JSON ({error})", path, allowed) from None
    parts = found.values() if isinstance(found, dict) else [0]
    if any(
        not (one is None or (isinstance(one, dict) and one.keys() <= {"description", "parameters"}))
        for one in parts
    ):
        raise ConfigError("the file of tools cannot be used", path, allowed)
    return dict(found)


def _machine(spec: str | None) -> Machine | None:
    return None if spec is None else Machine(version_of(spec).table)


@contextmanager
def _states(spec: str | None) -> Iterator[Path | None]:
    """The folder in which ``fsm_agent_states`` is."""
    if spec is None:
        yield None
        return
    with nullcontext(Path(spec)) if Path(spec).is_dir() else unpack_revision(spec) as root:
        for folder in (root, root / "states"):
            if (folder / "fsm_agent_states").is_dir():
                yield folder
                return
    raise ConfigError("there are no states in it", spec, "a git revision or a folder with fsm_agent_states")


def _sources(
    stack: ExitStack,
    files: Sequence[str],
    home: str | None,
    session: str | None,
    exit: str | None,
    days: float | None,
) -> list[Backtest]:
    if files:
        if session or exit or days is not None:
            raise ConfigError("--session, --exit and --days choose turns of a home", files[0], "no file")
        return [stack.enter_context(Backtest.of_file(one)) for one in files]
    return [Backtest.of(store_of(home), session=session, exit=exit, days=days)]


def _sample(sources: Sequence[Backtest], number: int, seed: int) -> list[Backtest]:
    if number < 1:
        raise ConfigError("--sample is too small", number, "1 or more")
    whole = Backtest(sources[0].store, [turn for one in sources for turn in one.turns]).sample(number, seed)
    chosen = set(whole.turns)
    return [replace(one, turns=[turn for turn in one.turns if turn in chosen]) for one in sources]


def _judge_all(
    sources: Sequence[Backtest], change: Change, states: Path | None, jobs: int | None, resume: str | None
) -> Found:
    turns = [turn for one in sources for turn in one.turns]
    verdicts: list[Verdict] = []
    with _verdict_file(resume, identity(change, states)) as (known, keep), _progress(len(turns)) as advance:
        advance(len(known.keys() & set(turns)))

        def hear(verdict: Verdict) -> None:
            keep(verdict)
            advance(1)

        for one in sources:
            there = {turn: known[turn] for turn in one.turns if turn in known}
            verdicts += one.run(change, states=states, jobs=jobs, heard=hear, known=there).verdicts
    return Found(describe_change(change, states), verdicts)


@contextmanager
def _verdict_file(
    path: str | None, change: str
) -> Iterator[tuple[dict[str, Verdict], Callable[[Verdict], None]]]:
    """The verdicts that a file has, and what writes another one: a line of JSON each, after one that says of
    which change they are. Raises ``ConfigError`` for the file of another change."""
    if path is None:
        yield {}, lambda verdict: None
        return
    head = json.dumps({"backtest": change})
    try:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed below, whatever it says
    except OSError as error:
        raise ConfigError(f"the file cannot be opened ({error.strerror})", path, "a file") from None
    with file:
        file.seek(0)
        lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]  # the last one may have been cut off
        if lines and lines[0].strip() != head:
            raise ConfigError("the file is of another change", path, RESUMED)
        try:
            known = [Verdict.from_dict(json.loads(line)) for line in whole[1:]]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the file is damaged ({error})", path, RESUMED) from None
        file.truncate(sum(len(line.encode()) for line in whole))

        def write(line: str) -> None:
            file.write(f"{line}\n")
            file.flush()

        def keep(verdict: Verdict) -> None:
            write(json.dumps(verdict.to_dict()))

        if not whole:
            write(head)

        yield {verdict.turn: verdict for verdict in known}, keep


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    columns = ("playing turns", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = console_of(sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda number: bar.advance(task, number)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written ({error.strerror})", path, "a file") from None


def _show(found: Found) -> None:
    """Print the outcome, then why."""
    put(
        screen(),
        Text(headline(found), "bold"),
        Text(f"{count(found.total, 'recorded turn')} · {found.change}\n"),
        *(Text(f"{found.counts[kind]:>7,}  {words}") for kind, words in KINDS.items() if found.counts[kind]),
    )
    for kind in ORDER:
        if not (listed := groups(found, kind)):
            continue
        grid = WholeTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        names = (
            ("turns", "state", "recorded", "now", "for example")
            if kind == "differs"
            else ("turns", "what", "for example")
        )
        for name in names:
            grid.add_column(name, justify="right" if name == "turns" else "left")
        for group in listed[:MOST]:
            one = group.first
            place = f"{one.turn}{f' move {one.at}' if one.at else ''}"
            if kind == "differs":
                sides = [f"{move(side)}\n{guards(side)}".rstrip() for side in (one.recorded, one.now)]
                grid.add_row(f"{group.count:,}", one.state, *sides, place)
            else:
                grid.add_row(f"{group.count:,}", group.what, place)
        put(screen(), Text(f"\n{KINDS[kind].capitalize()}", "bold"), grid)
        if len(listed) > MOST:
            put(screen(), Text(f"and {count(len(listed) - MOST, 'more kind')} of difference", "dim"))
