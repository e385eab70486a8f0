"""``fsm-agent eval``: ask an agent the cases of a dataset, score the answers, and compare runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from fsm_agent.agent import Agent
from fsm_agent.backtest.run import Backtest
from fsm_agent.cli.agent_options import options_of
from fsm_agent.cli.arguments import attribute_of, nest_settings
from fsm_agent.cli.options import CliOptions, Home, Json, with_agent
from fsm_agent.cli.screen import WholeTable, clean, console_of, count, dollars, preview, put, screen
from fsm_agent.cli.sessions import store_of
from fsm_agent.errors import ConfigError, near
from fsm_agent.evaluation.cases import Case, Dataset, cases_from_turns, read_cases, write_cases
from fsm_agent.evaluation.report import (
    HEADER,
    MOST,
    as_markdown,
    comparison_as_markdown,
    headline,
    misses,
    of_case,
    row,
)
from fsm_agent.evaluation.run import EvalRun, Evaluation, compare, read_run, refuse_name, run_names
from fsm_agent.evaluation.scores import Gate, GateResult, scorer_of
from fsm_agent.options import AgentOptions
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.settings.model import Settings, merge
from fsm_agent.support.threads import LOOP

NOT_EVALUATED = ("memory", "learn")
"""Toolsets that write notes: an evaluation must not change what the agent knows."""
CASES = "a list of Case, a Dataset, or a function that returns one"

Sources = Annotated[
    list[str] | None,
    typer.Argument(metavar="CASES", help="Files of cases, or MODULE:NAME; default: recorded turns."),
]
RecordedSession = Annotated[
    str | None, typer.Option("--session", help="Only recorded turns of this session.")
]
Exit = Annotated[str | None, typer.Option(metavar="REASON", help="Only recorded turns that ended so.")]
Days = Annotated[float | None, typer.Option(help="Only recorded turns of the last days.")]
Sample = Annotated[int | None, typer.Option(metavar="N", help="Use N recorded turns, chosen at random.")]
Seed = Annotated[int, typer.Option(help="Seed of the sample and of the intervals.")]
Gates = Annotated[
    list[str] | None,
    typer.Option("--gate", metavar="CONDITION", help="Such as exact>=0.9; else the exit status is 1."),
]
MarkdownFile = Annotated[
    str | None, typer.Option("--markdown", metavar="FILE", help="Write the report for a pull request.")
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
    exit: Exit = None,
    days: Days = None,
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
    with _agent_to_evaluate(agent, given) as evaluated, _progress(len(dataset.cases) * repeat) as advance:
        evaluation = Evaluation(evaluated, dataset, scorers, budget, jobs, repeat, seed)
        found = LOOP.run(evaluation.run(name, lambda result: advance()))
    judged = found.judge(gates)
    _write(markdown, as_markdown(found, judged))
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
    _write(markdown, as_markdown(found))
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
    _write(markdown, comparison_as_markdown(found, judged))
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
    exit: Exit = None,
    days: Days = None,
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
    """The cases that a command line names. Raises ``ConfigError``."""
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
        raise ConfigError("these are no cases", name, CASES)
    return Dataset(name, tuple(thing))


def _say_left_out(what: Iterable[str]) -> None:
    for one in what:
        print(f"fsm-agent: not read: {clean(one)}", file=sys.stderr)


def _usual(dataset: Dataset) -> list[str]:
    """The scorers that a dataset has something for."""
    found = ["exact"] if any(one.expected is not None for one in dataset.cases) else []
    found += ["tools"] if any(one.tools is not None for one in dataset.cases) else []
    return [*found, "cost", "latency"]


@contextmanager
def _agent_to_evaluate(name: str | None, given: CliOptions) -> Iterator[Agent[Any, Any]]:
    """The agent that is asked: one of a module, or the one of ``fsm-agent run`` without tools that write
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
    """The options of an agent of a module, with the model and the settings of the command line. Its answers
    are kept in the home of the command."""
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
        raise ConfigError("this is no agent", name, "an Agent, or a function that returns one")
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


# What is printed


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
    grid = WholeTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, name in enumerate(header):
        grid.add_column(name, justify="left" if place == 0 or name in ("score", "why") else "right")
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


def _write(path: str | None, text: str) -> None:
    if path is None:
        return
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written ({error.strerror})", path, "a file") from None


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    columns = ("asking cases", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = console_of(sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task, 1)
