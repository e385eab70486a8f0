"""``fsm-agent eval``: ask an agent the cases of a dataset, score the answers, and compare runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fsm_agent.agent import Agent
from fsm_agent.backtest.run import Backtest
from fsm_agent.cli.agent_options import options_of
from fsm_agent.cli.arguments import attribute_of, nest_settings
from fsm_agent.cli.options import (
    CliOptions,
    Home,
    Json,
    MarkdownFile,
    RecordedDays,
    RecordedExit,
    RecordedSession,
    Sample,
    Seed,
    with_agent,
)
from fsm_agent.cli.screen import (
    WholeTable,
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
from fsm_agent.errors import ConfigError, near
from fsm_agent.evaluation.cases import Case, Dataset, cases_from_turns, read_cases, write_cases
from fsm_agent.evaluation.run import (
    FIGURES,
    CaseResult,
    Comparison,
    EvalRun,
    Evaluation,
    compare,
    read_run,
    refuse_name,
    run_names,
)
from fsm_agent.evaluation.scores import Figures, Gate, GateResult, scorer_of
from fsm_agent.options import AgentOptions
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.settings import Settings, merge
from fsm_agent.support.texts import escape_markdown
from fsm_agent.support.threads import LOOP

NOT_EVALUATED = ("memory", "learn")
"""Toolsets that write notes: an evaluation must not change what the agent knows."""
CASES = "a list of Case, a Dataset, or a function that returns one"

Sources = Annotated[
    list[str] | None,
    typer.Argument(metavar="CASES", help="Files of cases, or MODULE:NAME; default: recorded turns."),
]
Gates = Annotated[
    list[str] | None,
    typer.Option("--gate", metavar="CONDITION", help="Such as exact>=0.9; else the exit status is 1."),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run; default: the newest.")]


@with_agent("session", "quiet", "verbose")
def run(
    given: CliOptions,
    sources: Sources = None,
    agent: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="An Agent, or a function that returns one.")
    ] = None,
    score: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCORER",
            help="exact, contains, schema=FILE, tools, cost, latency, judge=TEXT, MODULE:NAME.",
        ),
    ] = None,
    gate: Gates = None,
    judge_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model of judges; default: that of the agent.")
    ] = None,
    judge_budget: Annotated[
        float | None, typer.Option(metavar="USD", help="US dollars that judges may cost in this run.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="USD", help="US dollars that the answers of this run may cost.")
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", help="Answers to each case.")] = 1,
    jobs: Annotated[int, typer.Option(metavar="N", help="Cases at the same time; 1 with --budget.")] = 4,
    name: Annotated[str, typer.Option(help="Name of the run; default: the next number.")] = "",
    session: RecordedSession = None,
    exit: RecordedExit = None,
    days: RecordedDays = None,
    sample: Sample = None,
    seed: Seed = 0,
    markdown: MarkdownFile = None,
    as_json: Json = False,
) -> int:
    """Ask an agent cases, and score its answers.

    A case that the same agent answered before is not asked again. The exit status is 1 if a gate does not
    hold, or if a case has no answer.
    """
    judge = {"model": judge_model, "usd": judge_budget}
    store = store_of(given.home)
    dataset = _dataset(store, sources or (), session, exit, days, sample, seed)
    scorers = [scorer_of(one, attribute_of, judge) for one in score or _usual(dataset)]
    gates = [Gate.of(one) for one in gate or ()]
    for one in gates:
        one.judge({scorer.name: None for scorer in scorers})
    if name:
        refuse_name(name)
    total = len(dataset.cases) * repeat
    with _agent_to_evaluate(agent, given) as evaluated, progress("asking cases", total) as advance:
        evaluation = Evaluation(evaluated, dataset, scorers, budget, jobs, repeat, seed)
        found = LOOP.run(evaluation.run(name, lambda result: advance(1)))
    judged = found.judge(gates)
    if markdown is not None:
        write_report(markdown, as_markdown(found, judged))
    if as_json:
        print(json.dumps(found.to_dict() | {"gates": _as_values(judged)}, ensure_ascii=False))
    else:
        _show(found, judged)
    return int(bool(found.unanswered or found.unscored) or not all(one.ok for one in judged))


def show(
    name: RunName = "",
    case: Annotated[str | None, typer.Option(metavar="ID", help="Show the answer to this case.")] = None,
    markdown: MarkdownFile = None,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Show a run, or one of its answers."""
    store = store_of(home)
    found = read_run(store, name)
    if case is not None:
        return _show_case(store, found, case, as_json)
    if markdown is not None:
        write_report(markdown, as_markdown(found))
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
        return 0
    _show(found, ())
    put(screen(), Text(f"\nRuns: {', '.join(run_names(store)[-MOST:])}", "dim"))
    return 0


def compare_runs(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="Name of a run.")],
    after: RunName = "",
    gate: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="On a difference, such as exact.low>=-0.05."),
    ] = None,
    seed: Seed = 0,
    markdown: MarkdownFile = None,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Compare two runs over the cases of both. The exit status is 1 if a gate does not hold."""
    store = store_of(home)
    found = compare(read_run(store, before), read_run(store, after), seed)
    judged = found.judge(gate or ())
    if markdown is not None:
        write_report(markdown, comparison_as_markdown(found, judged))
    if as_json:
        print(json.dumps(found.to_dict() | {"gates": _as_values(judged)}, ensure_ascii=False))
        return int(not all(one.ok for one in judged))
    rows = (row(each, one, signed=True) for each, one in found.differences.items())
    put(
        screen(),
        Text(f"{found.before.name} → {found.after.name}", "bold"),
        Text(f"{count(found.alone, 'case')} of one run alone\n" if found.alone else ""),
        _grid(("score", "cases", "difference", "95 % interval"), rows),
    )
    if found.changes:
        cells = ((one.case, one.score, f"{one.before:g}", f"{one.after:g}") for one in found.changes[:MOST])
        put(screen(), Text("\nChanged cases", "bold"), _grid(("case", "score", "before", "after"), cells))
        _more(len(found.changes))
    _show_gates(judged)
    return int(not all(one.ok for one in judged))


def cases(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A .jsonl for inspect-ai, a .json or .yaml for pydantic-evals."),
    ],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="CASES", help="A file of cases, or MODULE:NAME; default: recorded turns."
        ),
    ] = None,
    session: RecordedSession = None,
    exit: RecordedExit = None,
    days: RecordedDays = None,
    sample: Sample = None,
    seed: Seed = 0,
    home: Home = None,
) -> int:
    """Write cases to a file, by default those of recorded turns."""
    dataset = _dataset(store_of(home), source or (), session, exit, days, sample, seed)
    write_cases(dataset, file)
    print(f"{file}: {count(len(dataset.cases), 'case')}")
    return 0


# Cases and agents


def _dataset(
    store: Store,
    sources: Sequence[str],
    session: str | None,
    exit: str | None,
    days: float | None,
    sample: int | None,
    seed: int,
) -> Dataset:
    """Return the cases that a command line names. Raises ``ConfigError``."""
    if sources:
        if session or exit or days is not None or sample is not None:
            wrong = "--session, --exit, --days and --sample choose recorded turns"
            raise ConfigError(wrong, sources[0], "no other cases")
        parts = [
            _load_dataset(one) if ":" in one and not Path(one).exists() else read_cases(one)
            for one in sources
        ]
        left_out = [f"{one.name}: {what}" for one in parts for what in one.left_out]
        found = Dataset(
            ", ".join(one.name for one in parts), tuple(case for one in parts for case in one.cases)
        )
        _say_left_out(left_out)
    else:
        turns = Backtest.of(store, session=session, exit=exit, days=days)
        if sample is not None:
            if sample < 1:
                raise ConfigError("--sample is too small", sample, "1 or more")
            turns = turns.sample(sample, seed)
        found = cases_from_turns(store, turns.turns)
        _say_left_out(found.left_out)
    if not found.cases:
        raise ConfigError(
            "there is no case to ask", ", ".join(sources) or None, "a file of cases, or recorded turns"
        )
    return found


def _load_dataset(name: str) -> Dataset:
    thing = attribute_of(name, "the cases", f"MODULE:NAME of {CASES}")
    if callable(thing):
        try:
            thing = thing()
        except Exception as error:  # a function of the user may raise anything
            raise ConfigError(f"the cases cannot be made ({error})", name, CASES) from error
    if isinstance(thing, Dataset):
        return thing
    if not isinstance(thing, list | tuple) or not all(isinstance(one, Case) for one in thing):
        raise ConfigError("these are not cases", name, CASES)
    return Dataset(name, tuple(thing))


def _say_left_out(what: Iterable[str]) -> None:
    for one in what:
        print(f"fsm-agent: not read: {clean(one)}", file=sys.stderr)


def _usual(dataset: Dataset) -> list[str]:
    """Return the scorers that apply to a dataset."""
    found = ["exact"] if any(one.expected is not None for one in dataset.cases) else []
    found += ["tools"] if any(one.tools is not None for one in dataset.cases) else []
    return [*found, "cost", "latency"]


@contextmanager
def _agent_to_evaluate(name: str | None, given: CliOptions) -> Iterator[Agent[Any, Any]]:
    """Yield the agent to evaluate: one of a module, or the one of ``fsm-agent run`` without tools that write
    notes."""
    if name is not None:
        agent: Agent[Any, Any] = Agent.of(_of_module(name, given))
    else:
        callbacks = {"approval": lambda request: True} if given.yes else None
        options, _ = options_of(given, callbacks)
        toolsets = [one for one in options["toolsets"] or () if one not in NOT_EVALUATED]
        agent = Agent.of({**options, "toolsets": toolsets})
    with agent:
        yield agent


def _of_module(name: str, given: CliOptions) -> AgentOptions:
    """Return the options of a module's agent, with the model and the settings of the command line. Its
    answers are stored in the home of the command."""
    own = {
        "--tool": given.tools, "--max-iterations": given.max_iterations, "--max-cost": given.max_cost,
        "--max-tokens": given.max_tokens, "--max-seconds": given.max_seconds,
    }  # fmt: skip
    if wrong := next((option for option, value in own.items() if value), None):
        raise ConfigError("--agent has tools and limits of its own", wrong, f"no {wrong}; --set NAME=VALUE")
    thing = attribute_of(name, "the agent", "MODULE:NAME of an Agent, or of a function that returns one")
    if callable(thing) and not isinstance(thing, Agent):
        try:
            thing = thing()
        except ConfigError:
            raise
        except Exception as error:  # a function of the user may raise anything
            raise ConfigError(f"the agent cannot be made ({error})", name) from error
    if not isinstance(thing, Agent):
        raise ConfigError("this is not an agent", name, "an Agent, or a function that returns one")
    store = store_of(given.home)
    options: AgentOptions = {**thing.options, "home": store.home, "store": store}
    if given.model is not None:
        options |= {
            "model": given.model,
            "base_url": given.base_url,
            "api_key": given.api_key,
            "api_mode": None,
        }
    if given.sets:
        changed = merge(thing.settings.model_dump(mode="json"), nest_settings(given.sets))
        options["settings"] = Settings.of(changed)
    if given.yes and options["callbacks"] is None:
        options["callbacks"] = {"approval": lambda request: True}
    return options


# Output


def _show(found: EvalRun, gates: Sequence[GateResult]) -> None:
    spent = [f"{dollars(found.usd)} for answers"] if found.usd else []
    spent += [f"{dollars(found.judged_usd)} for judges"] if found.judged_usd else []
    put(
        screen(),
        Text(clean(headline(found)), "bold"),
        Text(f"spent in this run: {', '.join(spent)}\n" if spent else ""),
        _grid(HEADER, (row(*each) for each in found.figures.items())),
    )
    if listed := misses(found):
        cells = ((one.case, one.score or "no answer", f"{one.value:g}", one.why) for one in listed[:MOST])
        put(
            screen(),
            Text("\nCases with less than 1", "bold"),
            _grid(("case", "score", "value", "why"), cells),
        )
        _more(len(listed))
    _show_gates(gates)


def _show_gates(gates: Sequence[GateResult]) -> None:
    if gates:
        put(screen(), Text(""), *(Text(str(one), "green" if one.ok else "red") for one in gates))


def _more(number: int) -> None:
    if number > MOST:
        put(screen(), Text(f"and {number - MOST:,} more", "dim"))


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> WholeTable:
    grid = grid_of(header, right={*header[1:]}.difference(("score", "why")))
    for cells in rows:
        grid.add_row(*(preview(cell, 80) for cell in cells))
    return grid


def _show_case(store: Store, found: EvalRun, case: str, as_json: bool) -> int:
    results = of_case(found, case)
    if not results:
        raise ConfigError(
            "the run has no such case", case, near(case, dict.fromkeys(one.case for one in found.results))
        )
    if as_json:
        print(json.dumps([one.to_dict() for one in results], ensure_ascii=False))
        return 0
    for one in results:
        whole = (Turns(store.database).result(one.turn) or {}) if _there(store, one.turn) else {}
        lines = [f"{one.case}  {one.turn or 'not asked'}  {one.exit or one.problem}", ""]
        lines += [str(whole.get("final_response") or one.answer), ""]
        lines += [
            f"{name}: {'–' if score.value is None else f'{score.value:g}'}  {score.why}".rstrip()
            for name, score in one.scores.items()
        ]
        put(screen(), *(Text(clean(line)) for line in lines))
    return 0


def _there(store: Store, turn: str) -> bool:
    return bool(store.database.select("SELECT 1 FROM turns WHERE id = ?", turn))


def _as_values(gates: Sequence[GateResult]) -> list[dict[str, Any]]:
    return [{"gate": one.gate.text, "found": one.found, "ok": one.ok} for one in gates]


# The report: lines of a table for a terminal, and Markdown for a pull request.


MOST = 20
"""Maximum cases that a report lists; the last line counts the others."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A case that lost points, or has no answer (``score`` is empty then)."""

    case: str
    score: str
    value: float
    why: str


def misses(run: EvalRun) -> list[Miss]:
    """Return cases without an answer, then cases with less than 1 point, in the order of the cases."""
    lost = [
        Miss(one.case, name, score.value, score.why)
        for one in run.results
        for name, score in one.scores.items()
        if name not in FIGURES and score.value is not None and score.value < 1
    ]
    return [*(Miss(one.case, "", 0.0, one.problem) for one in run.unanswered), *lost]


def headline(run: EvalRun) -> str:
    """Describe a run in one line."""
    cases = len({one.case for one in run.results})
    cached = sum(one.cached for one in run.results)
    parts = [f"{run.name}: {cases:,} cases of {run.dataset}, {run.model}"]
    parts += [f"{cached:,} answers from earlier runs"] if cached else []
    parts += [f"{len(run.unanswered):,} without an answer"] if run.unanswered else []
    parts += [f"{len(run.unscored):,} not judged"] if run.unscored else []
    return " · ".join(parts)


def figure(name: str, value: float, *, signed: bool = False) -> str:
    """Format one figure in the unit of its score."""
    sign = "+" if signed and value >= 0 else ""
    if name == "cost":
        return f"{'-' if value < 0 else sign}${abs(value):.{6 if abs(value) < 0.01 else 4}f}"
    return f"{value:{sign}.2f} s" if name == "latency" else f"{value:{sign}.3f}"


def row(name: str, found: Figures | None, *, signed: bool = False) -> tuple[str, ...]:
    """Return score, cases, mean, and interval; dashes for a score without cases."""
    if found is None:
        return (name, "0", "–", "–")
    low, high = (figure(name, one, signed=signed) for one in (found.low, found.high))
    return (name, f"{found.cases:,}", figure(name, found.mean, signed=signed), f"{low} to {high}")


HEADER = ("score", "cases", "mean", "95 % interval")


def as_markdown(run: EvalRun, gates: Sequence[GateResult] = ()) -> str:
    """Return the report for a pull request."""
    lines = [
        f"### Evaluation {escape_markdown(headline(run))}",
        "",
        *_table(HEADER, (row(*each) for each in run.figures.items())),
    ]
    lines += _gates(gates)
    if listed := misses(run):
        cells = ((one.case, one.score or "no answer", f"{one.value:g}", one.why) for one in listed[:MOST])
        lines += ["", *_table(("case", "score", "value", "why"), cells)]
        lines += [f"\n{len(listed) - MOST:,} more are not listed."] if len(listed) > MOST else []
    return "\n".join(lines) + "\n"


def comparison_as_markdown(found: Comparison, gates: Sequence[GateResult] = ()) -> str:
    """Return the comparison for a pull request."""
    rows = (row(name, one, signed=True) for name, one in found.differences.items())
    header = ("score", "cases", "difference", "95 % interval")
    names = map(escape_markdown, (found.before.name, found.after.name))
    lines = [f"### Evaluation {' → '.join(names)}", "", *_table(header, rows)]
    lines += _gates(gates)
    if found.changes:
        cells = ((one.case, one.score, f"{one.before:g}", f"{one.after:g}") for one in found.changes[:MOST])
        lines += ["", *_table(("case", "score", "before", "after"), cells)]
        more = len(found.changes) - MOST
        lines += [f"\n{more:,} more are not listed."] if more > 0 else []
    return "\n".join(lines) + "\n"


def _gates(gates: Sequence[GateResult]) -> list[str]:
    return ["", *(f"- {escape_markdown(str(one))}" for one in gates)] if gates else []


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(map(escape_markdown, cells))} |" for cells in rows]


def of_case(run: EvalRun, case: str) -> list[CaseResult]:
    """Return the results of one case."""
    return [one for one in run.results if one.case == case]
