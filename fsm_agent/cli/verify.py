"""``fsm-agent verify``: the proofs about the table of a turn, or about one of the user's own. docs/verify.md
shows its output."""

from __future__ import annotations

import json as jsonlib
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import RenderableType
from rich.text import Text

from fsm_agent.cli.arguments import nest_settings, table_of
from fsm_agent.cli.models import most_money
from fsm_agent.cli.screen import console_of, count, grid_of, put, screen, write_report
from fsm_agent.composition.turn_wiring import TURN, limits_for
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import check_certificate, search, verify_table
from fsm_agent.fsm.verify.certificate import certificate
from fsm_agent.fsm.verify.faults import counterexample
from fsm_agent.fsm.verify.reach import (
    SECONDS,
    STATES_OF_THE_END,
    TimeLimit,
    all_limit_names,
    limit_names,
    promela,
)
from fsm_agent.fsm.verify.report import Check, Report
from fsm_agent.settings import Settings, dot_names

LARGEST = 10_000_000
"""Maximum of a limit: a larger one is a mistake; the formulas have no limit of their own."""
MOST_PAIRS = 50_000
"""Maximum pairs to count for the comparison with spin; they take a second."""


def verify(
    name: str | None,
    sets: Sequence[str],
    json: bool,
    model: str | None = None,
    watch: tuple[str, ...] = (),
    seconds: float = SECONDS,
    script: str | None = None,
    models: Sequence[str] = (),
    certified: str | None = None,
    long: bool = False,
) -> int:
    """Print the verdict on a table and its bounds, with ``long`` the proof too; return 1 if a check fails.

    ``model``: the file for the Promela model; ``watch``: the states whose visits are bounded; ``seconds``:
    the time for the bounds; ``script``: the file for a counterexample if there is one; ``models``: those that
    a turn may ask; ``certified``: the file for the certificate of a proved table."""
    table = table_of(name)
    if len(models) > 1 and "fallbacks" not in nest_settings(sets):
        sets = [*sets, f"fallbacks={len(models) - 1}"]
    if wrong := [state for state in watch if state not in table.states or state == table.final]:
        allowed = ", ".join(state for state in table.states if state != table.final)
        raise ConfigError(f"the table {table.name} has no such state to watch", ", ".join(wrong), allowed)
    chosen = limits(table, sets)
    written = None if model is None else write_model(table, chosen, model)
    with _progress() as tell:
        report = verify_table(table, chosen, watch=watch, within=TimeLimit(seconds, tell))
        if certified is not None and report.ok:
            tell("certificate")
            found = certificate(table, chosen, TimeLimit(seconds))
            write_report(certified, jsonlib.dumps(found, ensure_ascii=False), "certificate")
    shown = [] if script is None or report.ok else _write_counterexample(table, name, script)
    if certified is not None:
        shown += _how_to_check_certificate(table, name, certified, report.ok)
    requests = most_requests(chosen or {}, sets) if table is TURN else {}
    money = most_money(requests, models, _settings_in(sets)) if requests else None
    if json:
        more: dict[str, object] = {"requests": requests} if requests else {}
        more |= {"money": asdict(money)} if money else {}
        more |= {"promela": written} if written else {}
        more |= {"certificate": certified if report.ok else None} if certified is not None else {}
        print(jsonlib.dumps(report.to_dict() | more, ensure_ascii=False))
        return 0 if report.ok else 1
    further = [
        *([""] if requests else []),
        *_requests_in_words(requests),
        *(money.lines() if money else ()),
        *(_how_to_check(written) if written else ()),
        *shown,
    ]
    put(screen(), *_summary(report), *(Text(line) for line in further))
    if long:
        put(screen(), Text(), *(Text(line) for line in report.render_lines()[:-2]))
    else:
        print("\nThe proof: --long")
    return 0 if report.ok else 1


def _summary(report: Report) -> Iterator[RenderableType]:
    """Yield the verdict, the findings, and the bounds."""
    reports = [*_reports(report)]
    checks = [check for one in reports for check in one.checks]
    properties = [judged for one in reports for judged in one.properties]
    failed = [one for one in checks if not one.ok] + [one for one in properties if one.finding]
    if report.ok:
        yield Text.assemble(("ok", "green"), f"  {report.table}: every turn ends")
    else:
        findings = sum(len(one.findings) if isinstance(one, Check) else 1 for one in failed)
        yield Text.assemble(("FAILED", "red"), f"  {report.table}: {count(findings, 'finding')}")
    yield Text(f"  {report.states} states, {report.rows} rows, {count(report.counters, 'counter')}")
    passed = f"  {sum(one.ok for one in checks)} of {len(checks)} checks passed"
    verdicts = Counter(one.verdict for one in properties)
    judged = [f"{number} {verdict}" for verdict, number in sorted(verdicts.items())]
    yield Text(passed + (f"; properties: {', '.join(judged)}" if judged else ""))
    yield from (Text(line) for one in failed for line in one.render())
    yield from (grid for one in reports if (grid := _bounds(one)) is not None)
    if report.limits and any(one.figures for one in reports):
        yield Text("  for " + ", ".join(f"{name} {value:,}" for name, value in report.limits.items()))


def _reports(report: Report) -> Iterator[Report]:
    """Yield the report, and those of the tables inside."""
    yield report
    for one in report.inner:
        yield from _reports(one)


def _bounds(report: Report) -> RenderableType | None:
    """Return the bounds that no turn exceeds, with the caps if there are any."""
    figures = [one for one in report.figures if one.caps] or report.figures
    if not figures:
        return None
    grid = grid_of((f"\n{report.table}", "\nat most", "\nknown"), breaks=48)
    for one in figures:
        grid.add_row(one.quantity, one.formula if one.value is None else f"{one.value:,}", one.kind)
    return grid


def most_requests(chosen: Mapping[str, int], sets: Sequence[str]) -> dict[str, int]:
    """Return the maximum requests to models under these limits: of a ``turn``, of the ``tree`` of a turn and
    its children, of a ``compaction`` that a person requests."""
    settings = _settings_in(sets)
    tree = settings.delegation.max_attempts_per_tree
    own = chosen["attempts"]
    return {
        "turn": own,
        "tree": tree or int(own * settings.delegation.tree_cap_factor),
        "compaction": min(own, chosen["summarizers"]),
    }


def _settings_in(sets: Sequence[str]) -> Settings:
    return Settings.of(
        {key: value for key, value in nest_settings(sets).items() if key in Settings.model_fields}
    )


def _requests_in_words(most: Mapping[str, int]) -> list[str]:
    if not most:
        return []
    return [
        "Requests to models, those for summaries and those without an answer included",
        f"  a turn alone: at most {most['turn']:,}",
        f"  a turn and its children, and theirs: at most {most['tree']:,}",
        f"  a compaction that is asked for: at most {most['compaction']:,}",
    ]


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the current step on one line of standard error, which disappears again; nothing without a
    terminal."""
    console = console_of(sys.stderr)
    with console.status("proofs") as line:  # draws on terminals only
        yield lambda what: line.update(what)


def limits(table: Table, sets: Sequence[str]) -> Mapping[str, int] | None:
    """Return the limits for which bounds are computed: for the turn's table those of the settings
    (``name=value`` texts, under the names of ``Settings``), and limits given by their own names; ``None`` for
    a table of the user's own if none is given."""
    known = all_limit_names(table)
    given = nest_settings(sets) if table is TURN else dot_names(nest_settings(sets))
    settings = {key: value for key, value in given.items() if table is TURN and key in Settings.model_fields}
    values: dict[str, int] = {}
    if table is TURN:
        values.update(limits_for(settings))
    for key, value in given.items():
        if key not in settings:
            values[key] = _maximum(key, value, known, table)
    if values and (missing := [limit for limit in known if limit not in values]):
        raise ConfigError("maxima are missing", ", ".join(missing), "a --set for each of them, or for none")
    return values or None


def _maximum(name: str, value: object, known: Sequence[str], table: Table) -> int:
    if name not in known:
        what, settings = f"table {table.name} has no such maximum", ""
        if table is TURN:
            what, settings = "unknown setting or maximum", "a setting such as max_iterations, or "
        raise ConfigError(
            what,
            f"{name}={jsonlib.dumps(value)}",
            settings + ("the maxima " + ", ".join(known) if known else "none"),
        )
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise ConfigError(f"maximum {name} is out of range", value, f"a whole number from 0 to {LARGEST:,}")
    return value


def write_model(table: Table, chosen: Mapping[str, int] | None, file: str) -> dict[str, object]:
    """Write the model; return its file, and the number of states that spin should store if that is small
    enough to count here."""
    needed = limit_names(table)
    if chosen is None and needed:
        raise ConfigError(
            "a Promela model is of one configuration", "no maxima", f"--set for each of {', '.join(needed)}"
        )
    maxima = dict(chosen or {})
    write_report(file, promela(table, maxima), "Promela model")
    found = search(table, maxima, caps=True, most_pairs=MOST_PAIRS)
    return {"file": file, "states": None if found is None else len(found.pairs) + STATES_OF_THE_END}


def _write_counterexample(table: Table, name: str | None, file: str) -> list[str]:
    found = counterexample(table)
    if found is None:
        return ["No run under small maxima gets stuck or is endless, as far as was looked: no script."]
    module, _, attribute = (name or "fsm_agent_states.table:TURN").partition(":")
    write_report(file, found.script(table, module, attribute), "counterexample")
    return [f"Counterexample: python {shlex.quote(file)}"]


def _how_to_check_certificate(table: Table, name: str | None, file: str, ok: bool) -> list[str]:
    if not ok:
        return ["No certificate: the table is not proved."]
    named, form = f" {shlex.quote(name)}" if name else "", shlex.quote(f"{table.name}.json")
    return [
        f"Certificate: {shlex.quote(file)}",
        f"  fsm-agent diagram{named} --format json > {form}",
        f"  python -I {shlex.quote(check_certificate.__file__)} {shlex.quote(file)} {form}",
    ]


def _how_to_check(written: dict[str, object]) -> list[str]:
    file, states = shlex.quote(str(written["file"])), written["states"]
    expected = (
        f"{states:,} states, stored"
        if isinstance(states, int)
        else f"more than {MOST_PAIRS:,} states, stored"
    )
    return [
        f"Promela model: {file}",
        f"  spin -a {file} && gcc -O2 -o pan pan.c && ./pan -m10000000 | grep -E 'errors|stored'",
        f"      expected: errors: 0, {expected}",
        f"  spin -a {file} && gcc -O2 -DNP -o pan pan.c && ./pan -l -m10000000 | grep errors",
        "      expected: errors: 0 (no turn is endless)",
    ]
