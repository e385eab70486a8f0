"""``fsm-agent diagram``: the turn's table or one of the user's own, drawn, counted, compared."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsm_agent.cli.arguments import nest_settings, table_of
from fsm_agent.cli.options import Home, Json
from fsm_agent.cli.screen import count, write_report
from fsm_agent.composition.turn_wiring import MACHINE, TURN
from fsm_agent.diagram import ENGINES, FORMATS, render, written
from fsm_agent.diagram import runs as files
from fsm_agent.diagram.around import around, near_json, near_markdown, neighbourhood
from fsm_agent.diagram.counts import counts_json, coverage_diagram, coverage_markdown, overlaid, run_markdown
from fsm_agent.diagram.layout import map_of, roomy
from fsm_agent.diagram.model import diagram_of
from fsm_agent.diagram.proof import proof_lines
from fsm_agent.diagram.runs import Run, Tally, move_at
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.table import Table
from fsm_agent.settings import dot_names
from fsm_agent.support.redaction import mask

if TYPE_CHECKING:
    from fsm_agent.sessions.store.journal.read import Turns


STORE = "store"
"""Replaces the id of a turn, and selects all of them."""
_ENDINGS = {ending: name for name, ending in FORMATS.items()}
_NAMES = ("mermaid", "dot", "svg", "png", "md", "json", *ENGINES)
_OF_DIFFS = ("md", "comment", "mermaid", "svg", "png", "json")


FORMATS_OF_DIFF = "md, comment, mermaid, svg, png or json."
FORMAT = "mermaid, dot, svg, png (the extra of that name), md, json, scxml or xstate."
LIVE = "Serve a page that shows and edits the table while you write it."
Live = Annotated[str | None, typer.Option(metavar="FILE", help=LIVE)]
Dark = Annotated[bool, typer.Option("--dark", help="A PNG in the dark theme.")]


def show(
    name: Annotated[str | None, typer.Argument(metavar="MODULE:TABLE", help="Default: the turn's.")] = None,
    format: Annotated[str, typer.Option("--format", "-f", help=FORMAT)] = "mermaid",
    state: Annotated[
        str | None, typer.Option(metavar="NAME", help="One state from near: each row with its guard.")
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw a turn over it: an export (JSON lines), or a turn's id."),
    ] = None,
    coverage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Count rows: exports, counts of tests, or store; never taken is red."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="What lays the SVG out: own, or graphviz (the extra of that name).")
    ] = "own",
    as_map: Annotated[bool, typer.Option("--map", help="The small picture for a README.")] = False,
    html: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write one page of everything: with --overlay a player of runs."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=N", help="For scxml and xstate a limit; to predict, a setting."),
    ] = None,
    predicted: Annotated[
        bool, typer.Option("--predicted", help="Draw the share of turns that will take each row.")
    ] = False,
    home: Home = None,
    dark: Dark = False,
    live: Live = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any that is free.")] = 0,
) -> int:
    """Print a table as a diagram or text. The word "show" may be left out."""
    if live is not None:
        others = (name, state, overlay, coverage, as_map, html, sets, predicted)
        return _serve_live(live, port, home, others)
    if html is not None:
        return page(name, html, overlay, coverage or ())
    table, chosen = table_of(name), _choose_format("svg" if format == "png" else format, _NAMES)
    if engine not in ("own", "graphviz"):
        raise ConfigError("unknown engine", engine, "own, graphviz")
    if engine == "graphviz" and chosen != "svg":
        raise ConfigError("graphviz draws SVG only", format, "--format svg")
    if sum((state is not None, overlay is not None, bool(coverage), as_map, predicted)) > 1:
        several = "several of --map, --state, --overlay, --coverage, --predicted"
        raise ConfigError("one picture shows one thing", several, "one of them")
    if as_map and chosen in ("markdown", "json"):
        raise ConfigError("a map is a picture", format, "mermaid, dot, svg, png")
    if chosen in ENGINES:
        if as_map or predicted or state is not None or overlay is not None or coverage:
            raise ConfigError("other engines get the whole table", format, "no --map, --state, --overlay …")
        text = ENGINES[chosen](table, _limits(sets or ()))
    elif predicted:
        text = _predict(table, chosen, engine, sets or (), home)
    elif sets:
        raise ConfigError("a picture has no limits", sets[0], "--format scxml, --format xstate, --predicted")
    elif as_map:
        small, layout = map_of(table)
        text = written(small, chosen, layout, engine)
    elif state is not None:
        text = _near(table, state, chosen, engine)
    elif overlay is not None or coverage:
        text = _draw_counts(table, chosen, engine, overlay, coverage or ())
    elif engine == "graphviz":
        text = written(diagram_of(table), "svg", engine=engine)
    else:
        text = render(
            table, chosen, layout=table.layout, proof_lines=proof_lines(table) if chosen == "svg" else ()
        )
    _print(text, format, dark)
    return 0


def _print(text: str, format: str, dark: bool) -> None:
    """Print a text, or an SVG as the requested PNG. Raises ``ConfigError``."""
    if dark and format != "png":
        raise ConfigError("only a PNG has one theme", format, "--format png, or no --dark")
    if format != "png":
        sys.stdout.write(text)
        return
    from fsm_agent.diagram.svg import as_png

    if sys.stdout.isatty():
        raise ConfigError("a PNG is nothing for a terminal", format, "> FILE.png")
    sys.stdout.buffer.write(as_png(text, dark=dark))


def _serve_live(where: str, port: int, home: str | None, others: Sequence[object]) -> int:
    if given := next((one for one in others if one), None):
        raise ConfigError("the live page shows the table of its file", given, f"--live {where} alone")
    from fsm_agent.cli.debug import serve_table

    return serve_table(where, port, home)


def page(name: str | None, path: str, overlay: str | None, coverage: Sequence[str]) -> int:
    """Write one HTML file of a table, with a player for a turn and the coverage of others."""
    from fsm_agent.diagram.page import as_page

    table = table_of(name)
    runs = runs_of(overlay) if overlay is not None else []
    tally = files.tally_of_runs(table, runs) if runs else None
    if coverage:
        tally = _coverage(table, coverage)
    limits = table.default_limits() if table.default_limits else None
    write_report(path, as_page(table, runs=runs, tally=tally, limits=limits), "page")
    print(f"written: {path}", file=sys.stderr)
    return 0


def _coverage(table: Table, sources: Sequence[str]) -> Tally:
    at_hand = [source for source in sources if Path(source).exists()]
    others = [step for one in sources if one not in at_hand for step in _all_steps(one, table)]
    return files.tally_of(table, at_hand, others)


def runs_of(source: str) -> list[Run]:
    """Return turns with their child turns: those of an export in a file, or one of the home directory by its
    id or its session. Raises ``ConfigError``."""
    if Path(source).exists() or Path(source).suffix:
        return files.read_runs(source)
    from fsm_agent.cli.sessions import store_of
    from fsm_agent.sessions.store.journal.read import Turns
    from fsm_agent.sessions.store.stored_sessions import any_turn

    store = store_of(None)
    turns = Turns(store.database)
    return [_run(turns, any_turn(store, source))]


def _run(turns: Turns, turn_id: str, times: Sequence[float] = ()) -> Run:
    info, own = turns.info(turn_id), turns.times(turn_id)
    children = tuple(_run(turns, child, own) for child in [*turns.children(turn_id), *turns.inner(turn_id)])
    at = move_at(info.began, times)
    return Run(tuple(turns.steps(turn_id)), turn_id, info.table_name, mask(info.asked), at, children)


def _all_steps(source: str, table: Table) -> list[Step]:
    """Return the moves of all turns of the home directory for ``store``, else of one turn and its descendants
    that run ``table``."""
    if source != STORE:
        (run,) = runs_of(source)
        own = [one for one in run.below() if one.table == table.name]
        return [step for one in (run, *own) for step in one.steps]
    from fsm_agent.cli.sessions import store_of
    from fsm_agent.sessions.store.journal.read import Turns

    return Turns(store_of(None).database).all_steps()


def diff(
    old: Annotated[
        str,
        typer.Argument(metavar="OLD", help="A git revision, . (the working tree), a file, or module:table."),
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same.")] = ".",
    format: Annotated[str, typer.Option("--format", "-f", help=FORMATS_OF_DIFF)] = "md",
    name: Annotated[
        str | None,
        typer.Option("--table", metavar="MODULE:TABLE", help="Of revisions; default: the turn's."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LIMIT=N", help="A limit that figures are worked out for."),
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when something changed, as git diff does.")
    ] = False,
    as_json: Json = False,
    dark: Dark = False,
) -> int:
    """Compare two versions of a table: rows, proofs, bounds."""
    from fsm_agent.diagram.versions import compare, rendering, version_of

    format = "json" if as_json else format
    if format not in _OF_DIFFS:
        raise ConfigError("unknown format of a comparison", format, ", ".join(_OF_DIFFS))
    if name is not None and not re.fullmatch(r"[\w.]+:\w+", name):
        raise ConfigError("this names no table", name, "module:attribute of a Table")
    limits = _limits(sets or ())
    a, b = version_of(old, name), version_of(new, name)
    difference = compare.compare(a.table, b.table)
    proofs = compare.proofs(a, b, limits)
    if format == "md":
        answer = rendering.as_diff_markdown(a, b, difference, proofs)
    elif format == "comment":
        drawn = (diagram_of(a.table), diagram_of(b.table), difference, proofs, (a.name, b.name))
        answer = rendering.as_comment(a, b, difference, proofs, rendering.unite(*drawn))
    elif format == "json":
        answer = rendering.as_diff_json(a, b, difference, proofs)
    else:
        layout = TURN.layout if b.table.name == TURN.name and name is None and _is_ours(b.table) else None
        ways_out = layout.get("ways_out") if layout else None
        before, after = diagram_of(a.table, ways_out), diagram_of(b.table, ways_out)
        united = rendering.unite(before, after, difference, proofs, (a.name, b.name))
        plain = diagram_of(TURN, ways_out)
        form = "svg" if format == "png" else format
        answer = written(united, form, roomy(layout, plain, united) if layout else None)
    _print(answer, format, dark)
    return int(exit_code and (difference.changed or proofs.changed))


def _choose_format(format: str, names: Sequence[str]) -> str:
    chosen = _ENDINGS.get(format, format)
    if chosen not in (*FORMATS, *ENGINES):
        raise ConfigError("unknown diagram format", format, ", ".join(names))
    return chosen


def _is_ours(table: Table) -> bool:
    """Return whether it is a version of the turn's table: most of its states are states of the turn."""
    return len(set(table.states) & set(TURN.states)) > len(table.states) / 2


def _near(table: Table, state: str, format: str, engine: str) -> str:
    diagram = neighbourhood(table, state)
    if format == "markdown":
        return near_markdown(table, state)
    if format == "json":
        return near_json(diagram, state)
    return written(diagram, format, around(diagram, state), engine)


def _draw_counts(table: Table, format: str, engine: str, overlay: str | None, coverage: Sequence[str]) -> str:
    if overlay is not None:
        tally = files.tally_of_runs(table, runs_of(overlay))
    else:
        tally = _coverage(table, coverage)
    if format == "json":
        return counts_json(table, tally)
    if format == "markdown":
        return coverage_markdown(table, tally) if overlay is None else run_markdown(table, tally)
    layout = table.layout
    plain = diagram_of(table, layout.get("ways_out") if layout else None)
    marked = coverage_diagram(plain, tally) if overlay is None else overlaid(plain, tally)
    return written(marked, format, roomy(layout, plain, marked) if layout else None, engine)


def _predict(table: Table, format: str, engine: str, sets: Sequence[str], home: str | None) -> str:
    from fsm_agent.backtest.predict import draw_turns
    from fsm_agent.cli.predict import learn
    from fsm_agent.diagram.counts import Paths, forecast_json, forecast_markdown, predict_diagram
    from fsm_agent.fsm.machine import Machine

    if table.name != TURN.name:
        raise ConfigError("only turns of the agent's table are predicted", table.name, TURN.name)
    machine = MACHINE if table.digest == TURN.digest else Machine(table)
    learning = learn(machine, nest_settings(sets), home=home)
    turns = draw_turns(learning.observed, learning.limits, machine=machine)
    known = f"{learning.change}, predicted from {count(len(learning.observed), 'recorded turn')}."
    paths = Paths(turns, "Predicted", (known, "Behind a row is the share of turns that take it."))
    if format == "json":
        return forecast_json(table, paths)
    if format == "markdown":
        return forecast_markdown(table, paths)
    layout = table.layout
    plain = diagram_of(table, layout.get("ways_out") if layout else None)
    marked = predict_diagram(plain, paths)
    return written(marked, format, roomy(layout, plain, marked) if layout else None, engine)


def _limits(sets: Sequence[str]) -> Mapping[str, int]:
    values = dot_names(nest_settings(sets))
    for limit, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"limit {limit} is out of range", value, "a whole number, 0 or more")
    return values
