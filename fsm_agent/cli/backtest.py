"""``fsm-agent backtest``: what recorded turns would have done under a change; and ``--live``, where a model
continues at the end of a recording: the maximum cost, the question, the forks."""

from __future__ import annotations

import html
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fsm_agent.backtest import live
from fsm_agent.backtest.live import Ending, Fork, Live, Place, Purse
from fsm_agent.backtest.playback import Change
from fsm_agent.backtest.run import (
    MOST,
    ORDER,
    Backtest,
    Found,
    as_html,
    as_json,
    as_markdown,
    describe_change,
    groups,
    guards,
    headline,
    identity,
    move,
)
from fsm_agent.backtest.verdict import KINDS, Verdict
from fsm_agent.cli.arguments import nest_settings, tools_of
from fsm_agent.cli.models import NO_KEY, most_of_request
from fsm_agent.cli.options import (
    BaseUrl,
    Home,
    Json,
    MarkdownFile,
    Model,
    RecordedDays,
    RecordedExit,
    RecordedSession,
    Sample,
    Seed,
    Sets,
    TableVersion,
)
from fsm_agent.cli.screen import (
    clean,
    count,
    dollars,
    grid_of,
    preview,
    progress,
    put,
    screen,
    write_report,
)
from fsm_agent.cli.sessions import store_of
from fsm_agent.diagram.versions import unpack_revision, version_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.machine import Machine
from fsm_agent.providers.catalog import FREE, price_of
from fsm_agent.providers.config_file import config_of
from fsm_agent.providers.profiles import is_loopback
from fsm_agent.sessions.store import Store
from fsm_agent.settings import Settings
from fsm_agent.support.texts import escape_markdown
from fsm_agent.support.threads import LOOP

RESUMED = "a file that --resume wrote for the same change, or a new one"
NEEDS = "at least one turn that has ended; fsm-agent run records one"

Files = Annotated[
    list[str] | None, typer.Argument(metavar="FILE", help="Exports; default: the turns of the home.")
]
Prompt = Annotated[
    str | None, typer.Option(metavar="FILE", help="A system prompt; {recorded} in it is that of the turn.")
]
Schemas = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="JSON: by tool, a new description or new parameters; null removes it."),
]
States = Annotated[
    str | None, typer.Option(metavar="VERSION", help="States: a git revision, or a folder with the package.")
]
Resume = Annotated[
    str | None, typer.Option(metavar="FILE", help="Keep verdicts here, and begin with those that are there.")
]
Most = Annotated[
    str, typer.Option(metavar="N[%]", help="Turns that may differ; with more, the exit status is 1.")
]
GoLive = Annotated[
    bool, typer.Option("--live", help="Where a recording ends, let a model continue a fork of the turn.")
]
Budget = Annotated[float | None, typer.Option(metavar="USD", help="US dollars that all forks may cost.")]
At = Annotated[
    str | None,
    typer.Option(metavar="PLACE", help="Fork every turn there: STATE, STATE:VISIT, or after N moves."),
]
PureTools = Annotated[
    list[str] | None, typer.Option(metavar="MODULE:NAME", help="A pure tool that forks may run.")
]
Keep = Annotated[str | None, typer.Option(metavar="FOLDER", help="Keep the copy of the home with the forks.")]


def backtest(
    files: Files = None,
    sets: Sets = (),  # type: ignore[assignment]
    prompt: Prompt = None,
    tools: Schemas = None,
    table: TableVersion = None,
    states: States = None,
    session: RecordedSession = None,
    exit: RecordedExit = None,
    days: RecordedDays = None,
    sample: Sample = None,
    seed: Seed = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one a core.")] = None,
    resume: Resume = None,
    most: Most = "0",
    same_requests: Annotated[
        bool, typer.Option("--same-requests", help="Different requests count, too.")
    ] = False,
    markdown: MarkdownFile = None,
    page: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write the report as one page.")
    ] = None,
    go_live: GoLive = False,
    budget: Budget = None,
    model: Model = None,
    base_url: BaseUrl = None,
    at: At = None,
    tool: PureTools = None,
    keep: Keep = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Begin forks without asking.")] = False,
    as_json_: Json = False,
    home: Home = None,
) -> int:
    """Play recorded turns under a change, and compare.

    No model and no tool is called: every reply comes from the journal. With --live a model continues forks
    in a copy of the home, under a budget. The exit status is 1 when more turns differ than allowed.
    """
    allowed = _share(most)
    given = LiveOptions(budget, model, base_url, at, tool or (), keep, yes)
    given.refuse(go_live, {"FILE": files, "--table": table, "--states": states})
    change = Change(nest_settings(sets), _text(prompt), _schemas(tools), _machine(table))
    with ExitStack() as stack:
        folder = stack.enter_context(_states(states))
        sources = _sources(stack, files or (), home, session, exit, days)
        if sample is not None:
            sources = _sample(sources, sample, seed)
        found = _judge_all(sources, change, folder, jobs, resume)
        forks = continue_turns(sources[0].store, found, change, given) if go_live else None
    if markdown is not None:
        write_report(markdown, as_markdown(found) + ("" if forks is None else live_as_markdown(forks)))
    if page is not None:
        write_report(page, as_html(found) + ("" if forks is None else live_as_html(forks)))
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
    """Parse ``N`` or ``N%``; return its value for a number of turns. Raises ``ConfigError``."""
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
        raise ConfigError(f"the file of tools is not JSON ({error})", path, allowed) from None
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
    """Yield the folder that contains ``fsm_agent_states``."""
    if spec is None:
        yield None
        return
    allowed = "a git revision or a folder with fsm_agent_states"
    revision = unpack_revision(spec, what="--states cannot be read", allowed=allowed)
    with nullcontext(Path(spec)) if Path(spec).is_dir() else revision as root:
        for folder in (root, root / "states"):
            if (folder / "fsm_agent_states").is_dir():
                yield folder
                return
    raise ConfigError("--states has no states in it", spec, allowed)


def _sources(
    stack: ExitStack,
    files: Sequence[str],
    home: str | None,
    session: str | None,
    exit: str | None,
    days: float | None,
) -> list[Backtest]:
    """Return the recorded turns that the command line selects. Raises ``ConfigError`` if there are none."""
    if files:
        if session or exit or days is not None:
            raise ConfigError("--session, --exit and --days choose turns of a home", files[0], "no file")
        found = [stack.enter_context(Backtest.of_file(one)) for one in files]
    else:
        found = [Backtest.of(store_of(home), session=session, exit=exit, days=days)]
    if not any(one.turns for one in found):
        raise ConfigError("there is no recorded turn to play", ", ".join(files) or None, NEEDS)
    return found


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
    file = _verdict_file(resume, identity(change, states))
    with file as (known, keep), progress("playing turns", len(turns)) as advance:
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
    """Yield the verdicts in a file, and a function that appends one: one JSON value per line, after a first
    line that identifies the change. Raises ``ConfigError`` for the file of another change."""
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
        whole = [line for line in lines if line.endswith("\n")]  # the last one may be truncated
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
        what = ("state", "recorded", "now") if kind == "differs" else ("what",)
        grid = grid_of(("turns", *what, "for example"), right=("turns",))
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


# Live: a model continues forks of the turns, in a copy of the home.


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Options of ``--live``. ``usd``: the budget. ``model``: replaces the recorded one, at ``base_url``.
    ``where``: the moves to fork at. ``tools``: names of pure tools that may run. ``keep``: the folder for the
    copy of the home. ``yes``: do not ask."""

    usd: float | None
    model: str | None = None
    base_url: str | None = None
    where: str | None = None
    tools: Sequence[str] = ()
    keep: str | None = None
    yes: bool = False

    def refuse(self, live: bool, others: Mapping[str, object]) -> None:
        """Raise ``ConfigError`` for options that need ``--live``, or that ``--live`` does not support."""
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
    """The forks, the budget, and the amount spent, in US dollars."""

    forks: Sequence[Fork]
    usd: float
    spent: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"budget": self.usd, "spent": self.spent, "forks": [one.to_dict() for one in self.forks]}


def continue_turns(store: Store, found: Found, change: Change, given: LiveOptions) -> LiveFound:
    """Fork the turns of a backtest. Raises ``ConfigError`` if the person at the terminal declines, and
    without a terminal or ``--yes``."""
    assert given.usd is not None
    tools = tools_of(given.tools)
    live.refuse_unsafe(tools)
    where = "CallLLM" if given.where is None and given.model is not None else given.where
    begin = live.places(store, found.verdicts, change, where)
    if not begin:
        return LiveFound((), given.usd, 0.0)
    _ask(store, begin, change, given)
    with live.scratch(store, None if given.keep is None else Path(given.keep)) as copy:
        going = Live(copy, change, lambda place: _model(place, given), given.usd, tools)
        with progress("asking models", len(begin)) as advance:
            forks = LOOP.run(going.run(begin, lambda fork: advance(1)))
    return LiveFound(forks, given.usd, going.spent)


def _model(place: Place, given: LiveOptions) -> dict[str, Any]:
    """Return the model of a fork. A stored address is trusted only on this machine: a key must not be sent to
    an address from a record."""
    if given.model is not None:
        return {"model": given.model, "base_url": given.base_url}
    return {
        "model": place.model,
        "base_url": given.base_url or (place.address if is_loopback(place.address) else None),
    }


def _ask(store: Store, begin: Sequence[Place], change: Change, given: LiveOptions) -> None:
    """Print the maximum cost, and ask."""
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
        *(Text(f"{counts[kind]:>7,}  {words}") for kind, words in live.KINDS.items() if counts[kind]),
    )
    if not found.forks:
        return
    grid = grid_of(_COLUMNS, right=("cost",))
    for cells in _rows(found):
        grid.add_row(*(preview(cell, 100) for cell in cells))
    put(screen(), Text(""), grid)
    if len(found.forks) > MOST:
        put(screen(), Text(f"and {len(found.forks) - MOST:,} more", "dim"))


def live_as_markdown(found: LiveFound) -> str:
    """Return the live part of the report for a pull request."""
    lines = ["", f"#### {_headline(found)}", ""]
    if found.forks:
        lines += [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
        lines += [
            f"| {' | '.join(escape_markdown(preview(cell, 100)) for cell in cells)} |"
            for cells in _rows(found)
        ]
    return "\n".join(lines) + "\n"


def live_as_html(found: LiveFound) -> str:
    """Return the live part of the page: each fork beside its recording."""
    lines = [f"<h2>{html.escape(_headline(found))}</h2>"]
    for kind, words in live.KINDS.items():
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
        now = one.why or (live.KINDS[one.kind] if one.now is None else _side(one.now))
        first = f"move {one.first}: " if one.first else ""
        yield (one.place.turn, place, _side(one.recorded), f"{first}{now}", dollars(one.usd))


def _side(ending: Ending | None) -> str:
    if ending is None:
        return ""
    tools = f" ({', '.join(ending.tools)})" if ending.tools else ""
    return f"{ending.exit}{tools}: {ending.answer}"
