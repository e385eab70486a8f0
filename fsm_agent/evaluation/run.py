"""Runs: an agent answers each case in its own session, and scorers evaluate the answers."""

# The journal is the cache. The session of an answer is named by a digest of the agent and one of the case, so
# the next run of the same agent finds the existing turn, and continues one that a crash left unfinished.
# Scores are not stored with turns but computed again from the answers, so another scorer costs nothing. A
# judge is an agent like any other, and its verdicts are turns.

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from fsm_agent import __version__
from fsm_agent.agent import Agent
from fsm_agent.backtest.live import BudgetSpent, Purse
from fsm_agent.composition.turn_wiring import DIGEST
from fsm_agent.errors import ConfigError, FsmAgentError, near
from fsm_agent.evaluation.cases import SOURCE, Case, Dataset
from fsm_agent.evaluation.scores import (
    Answer,
    Figures,
    Gate,
    GateResult,
    Judge,
    Judgment,
    Score,
    Scorer,
    scorer_of,
)
from fsm_agent.options import AgentOptions
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import ABANDONED, TurnInfo, Turns
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.sessions.store.rows import newest_of, turn_tree
from fsm_agent.settings import Limits
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import LOOP
from fsm_agent.tools import as_tool

SHOWN = 500
"""Maximum characters of an answer kept in a run; the turn has all of it."""
PART = 500
"""Number of results stored under one key."""
MOST_JOBS = 100
NAME = re.compile(r"[\w.-]{1,64}")
ELSEWHERE = ("store", "telemetry", "dispatch", "learned")
"""Settings that do not affect answers."""
AGAIN = frozenset(
    {
        "api_retries_exhausted", "non_retryable_error", "local_processing_error", "interrupted_before_call",
        "interrupted_in_call", "interrupted_in_backoff", "interrupted_in_tools", "cost_limit", ABANDONED,
    }
)  # fmt: skip
"""Exits that say nothing about the agent: the next run asks the case again."""
PEOPLE = {"AskApproval", "clarify"}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One answer to one case, and its scores by name. ``number`` counts the repetitions from 1. ``problem``:
    why there is no answer; then there are no scores. ``answer`` is truncated."""

    case: str
    digest: str
    number: int
    turn: str = ""
    exit: str = ""
    answer: str = ""
    cached: bool = False
    problem: str = ""
    scores: Mapping[str, Score] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        scores = {name: [one.value, one.why] for name, one in self.scores.items()}
        return {**asdict(self), "scores": scores}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> CaseResult:
        """Read what ``to_dict`` returned."""
        return cls(**{**value, "scores": {name: Score(*one) for name, one in value["scores"].items()}})


@dataclass(frozen=True, slots=True)
class EvalRun:
    """The result of one evaluation. ``agent``: its digest; ``model``: its model. ``names`` of the scores.
    ``at`` in seconds since the epoch. ``usd``: what this run spent, excluding cached answers; ``judged_usd``:
    what its judges spent."""

    name: str
    dataset: str
    agent: str
    model: str
    at: float
    names: tuple[str, ...]
    results: tuple[CaseResult, ...]
    seed: int = 0
    usd: float = 0.0
    judged_usd: float = 0.0

    @property
    def figures(self) -> dict[str, Figures | None]:
        """The statistics of each score over cases; the repetitions of a case count as their mean."""
        return {name: Figures.of([*self.values(name).values()], self.seed) for name in self.names}

    @property
    def unanswered(self) -> list[CaseResult]:
        """The results without an answer."""
        return [one for one in self.results if one.problem]

    @property
    def unscored(self) -> list[CaseResult]:
        """The answers that a judge did not score, because its budget was spent or its turn failed."""
        return [
            one
            for one in self.results
            if any(score.why.startswith(UNJUDGED) for score in one.scores.values())
        ]

    def values(self, name: str) -> dict[str, float]:
        """Return the value of a score by case id; the mean for repeated cases."""
        found: dict[str, list[float]] = {}
        for one in self.results:
            if (score := one.scores.get(name)) is not None and score.value is not None:
                found.setdefault(one.case, []).append(score.value)
        return {case: fmean(values) for case, values in found.items()}

    def judge(self, gates: Iterable[str | Gate]) -> list[GateResult]:
        """Check gates. Raises ``ConfigError`` for an invalid one."""
        figures = self.figures
        return [(Gate.of(one) if isinstance(one, str) else one).judge(figures) for one in gates]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, with its statistics."""
        figures = {name: one and asdict(one) for name, one in self.figures.items()}
        head = {name: getattr(self, name) for name in _HEAD}
        return {**head, "figures": figures, "results": [one.to_dict() for one in self.results]}


_HEAD = ("name", "dataset", "agent", "model", "at", "names", "seed", "usd", "judged_usd")
UNJUDGED = "not judged"


# The agent


def digest_of(agent: Agent[Any, Any]) -> str:
    """Return a digest of everything that an agent's answer depends on: models, prompt, settings, tools with
    their code, type of the answer, table, and version of this package."""
    options, settings = agent.options, agent.settings.model_dump(mode="json")
    tools = [[asdict(one), ""] for one in agent.tools]
    code = [[tool.spec.name, _code(tool.handler)] for tool in map(as_tool, options["tools"] or ())]
    parts = {
        "model": _model(options["model"]),
        **{name: options[name] for name in ("base_url", "api_mode", "system_prompt", "toolsets", "name")},
        "fallbacks": [_model(one) for one in options["fallbacks"] or ()],
        "auxiliary": _model(options["auxiliary"]),
        "output": repr(options["output_type"]),
        "handoffs": [_other(one) for one in options["handoffs"]],
        "settings": {name: value for name, value in settings.items() if name not in ELSEWHERE},
        "tools": tools,
        "code": code,
        "table": DIGEST,
        "version": __version__,
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _model(model: Any) -> Any:
    """Return a model as text; for a port, its name or class."""
    if model is None or isinstance(model, str | list | tuple):
        return model
    if isinstance(model, Mapping):
        return {name: _model(value) for name, value in model.items() if name != "api_key"}
    return str(getattr(model, "name", "") or type(model).__qualname__)


def _other(handoff: Any) -> Any:
    """Return the identity of an agent that the conversation can be handed to."""
    options = getattr(handoff, "options", None) or {}
    return [getattr(handoff, "name", ""), _model(options.get("model")), options.get("system_prompt")]


def _code(handler: Any) -> str:
    try:
        return inspect.getsource(inspect.unwrap(handler))
    except (OSError, TypeError):
        return getattr(handler, "__qualname__", repr(type(handler)))


# A run


@dataclass(slots=True)
class Evaluation:
    """An agent, cases, and scorers. ``usd``: a budget for the answers of one run; with one, cases are asked
    one after the other. ``jobs``: cases asked concurrently. ``repeat``: answers to each case.

    Raises ``ConfigError`` for an unusable scorer, and for numbers out of range."""

    agent: Agent[Any, Any]
    dataset: Dataset
    scorers: Sequence[Scorer | Judge]
    usd: float | None = None
    jobs: int = 4
    repeat: int = 1
    seed: int = 0
    _purse: Purse = field(init=False)
    _purses: dict[str, Purse] = field(init=False)
    _agents: _Agents = field(init=False)
    _sessions: dict[str, asyncio.Lock] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name, most in (("jobs", MOST_JOBS), ("repeat", 1_000)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"--{name} is out of range", getattr(self, name), f"1 to {most:,}")
        names = [one.name for one in self.scorers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError("two scorers have the same name", twice[0], "a name for each")
        if not self.dataset.cases:
            raise ConfigError("there is no case to ask", self.dataset.name, "at least one case")
        self._purse, self._agents = Purse(self.usd), _Agents(self.agent)
        self._purses = {one.name: Purse(one.usd) for one in self.scorers if isinstance(one, Judge)}

    @property
    def digest(self) -> str:
        """The digest of the agent."""
        return digest_of(self.agent)

    async def run(self, name: str = "", heard: Callable[[CaseResult], None] = lambda one: None) -> EvalRun:
        """Ask and score all cases, and store the run under ``name``, by default the next number. ``heard``
        receives each result as it arrives. Raises ``ConfigError`` if the agent or a judge cannot be asked."""
        kept = KeptValues(self.agent.store, SOURCE)
        name = name or _next_name(kept.keys())
        refuse_name(name)
        digest, limit = self.digest, asyncio.Semaphore(self.jobs)

        async def one(case: Case, number: int) -> CaseResult:
            async with limit:
                found = await self._result(case, number, digest)
            heard(found)
            return found

        asked = [(case, number) for case in self.dataset.cases for number in range(1, self.repeat + 1)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(*each)) for each in asked]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            await self._agents.aclose()
        found = EvalRun(
            name, self.dataset.name, digest, str(_model(self.agent.options["model"])), self.agent.store.now(),
            tuple(one.name for one in self.scorers), tuple(task.result() for task in tasks), self.seed,
            self._purse.spent, sum(one.spent for one in self._purses.values()),
        )  # fmt: skip
        await _keep(kept, found)
        return found

    async def _result(self, case: Case, number: int, digest: str) -> CaseResult:
        session = f"{SOURCE}-{digest}-{case.digest}-{number}"
        blank = CaseResult(case.id, case.digest, number)
        try:
            turn, cached = await self._ask_once(
                self.agent.options, session, case.input, case.history, self._purse
            )
        except BudgetSpent:
            return _problem(blank, "not asked: the budget is spent")
        except ConfigError:
            raise
        except FsmAgentError as error:
            return _problem(blank, str(error))
        answer = self._answer(turn, cached)
        if answer.exit in AGAIN:
            why = f"its turn {turn} ended with {answer.exit}: {answer.error}"
            return _problem(blank, one_line(why.rstrip(": "), SHOWN), turn)
        scores = {one.name: await self._score(one, case, answer) for one in self.scorers}
        shown = one_line(answer.text, SHOWN)
        return CaseResult(case.id, case.digest, number, turn, answer.exit, shown, cached, "", scores)

    async def _score(self, scorer: Scorer | Judge, case: Case, answer: Answer) -> Score:
        if isinstance(scorer, Scorer):
            return await scorer.score(case, answer)
        options = self._judge_options(scorer)
        question = scorer.question(case, answer)
        asked = json.dumps([str(_model(options["model"])), scorer.prompt, question], ensure_ascii=False)
        session = f"judge-{hashlib.sha256(asked.encode('utf-8', 'replace')).hexdigest()[:24]}"
        try:
            turn, _ = await self._ask_once(options, session, question, (), self._purses[scorer.name])
        except BudgetSpent:
            return Score(None, f"{UNJUDGED}: the budget of the judge is spent")
        found = self._answer(turn, cached=False)
        try:
            judgment = Judgment.model_validate(found.value)
        except ValueError:
            return Score(None, f"{UNJUDGED}: turn {turn} of the judge ended with {found.exit}")
        return Score(judgment.score, one_line(judgment.reason, SHOWN))

    def _judge_options(self, judge: Judge) -> AgentOptions:
        mine = self.agent.options
        own: AgentOptions = {
            "model": mine["model"], "base_url": mine["base_url"], "api_mode": mine["api_mode"],
            "api_key": mine["api_key"], "settings": mine["settings"], "home": mine["home"],
            "store": mine["store"], "clock": mine["clock"],
        }  # fmt: skip
        if judge.model is not None:
            own |= {"model": judge.model, "base_url": judge.base_url, "api_mode": None, "api_key": None}
        return {
            **own,
            "toolsets": [],
            "system_prompt": judge.prompt,
            "output_type": Judgment,
            "name": "judge",
        }

    async def _ask_once(
        self,
        options: AgentOptions,
        session: str,
        question: str,
        history: Sequence[Mapping[str, Any]],
        purse: Purse,
    ) -> tuple[str, bool]:
        """Return (id of the answering turn, whether it existed). Raises ``BudgetSpent``."""
        async with self._sessions.setdefault(session, asyncio.Lock()):  # cases may ask the same
            last = _newest(self.agent.store, session)
            if last is not None and last.ended is not None and last.exit not in AGAIN:
                return last.id, True
            unfinished = last.id if last is not None and last.ended is None else None
            async with purse.one_turn() as limits, self._agents.one(options, limits) as agent:
                agent.session_id = session
                if unfinished is not None:
                    first: Any = agent.resume(unfinished)
                else:
                    first = agent.start(question, conversation_history=list(history))
                return await self._run_to_end(agent, first, session, purse), False

    async def _run_to_end(self, agent: Agent[Any, Any], first: Any, session: str, purse: Purse) -> str:
        """Run a turn, and those that it hands the conversation over to; return the last one."""
        following = first
        while following is not None:
            turn = following
            try:
                result = await turn.arun()
            finally:
                await purse.deduct(self.agent.store, turn.id, session, "tree")
            following = agent.following(result)
        return str(turn.id)

    def _answer(self, turn: str, cached: bool) -> Answer:
        """Read the answer of an ended turn, and of those that handed over to it, from the journal."""
        read = Turns(self.agent.store.database)
        result = read.result(turn) or {}
        turns = [*(str(step["turn_id"]) for step in result.get("handoffs") or ()), turn]
        asked = [one for each in turns for visit in read.visits(each).values() for one in visit]
        people = sum(one.seconds or 0.0 for one in asked if PEOPLE & {one.kind, one.name})
        seconds = sum(step.seconds for each in turns for step in read.steps(each)) - people
        return Answer(
            text=str(result.get("final_response") or ""),
            outcome=str(read.info(turn).outcome),
            exit=str(read.info(turn).exit),
            turn=turn,
            tools=tuple(one.name for one in asked if one.kind == "RunTool"),
            seconds=max(0.0, seconds),
            usd=_cost(self.agent.store, turns) if result.get("usage_known", True) else None,
            requests=int(result.get("attempts") or 0),
            error=str(result.get("error") or ""),
            cached=cached,
        )


@dataclass(slots=True)
class _Agents:
    """Pool of agents like ``agent``, and of judges, each for one case at a time. They are reused, because
    some start programs of MCP servers. With its own limit, an agent is used once. All are closed together:
    they may share a port, an extension, or a tool."""

    agent: Agent[Any, Any]
    idle: dict[str, list[Agent[Any, Any]]] = field(default_factory=dict)
    made: list[Agent[Any, Any]] = field(default_factory=list)

    @asynccontextmanager
    async def one(self, options: AgentOptions, limits: Limits | None) -> AsyncIterator[Agent[Any, Any]]:
        """Lend an agent with these options for one turn."""
        key = repr([_model(options["model"]), options.get("base_url"), options.get("system_prompt")])
        if limits is not None:
            yield self._make({**options, **_limit_options(self.agent, limits)})
            return
        idle = self.idle.setdefault(key, [])
        agent = idle.pop() if idle else self._make(options)
        yield agent
        idle.append(agent)

    def _make(self, options: AgentOptions) -> Agent[Any, Any]:
        mine: AgentOptions = {"home": self.agent.home, "store": self.agent.store, "source": SOURCE}
        self.made.append(Agent.of({**options, **mine}))
        return self.made[-1]

    async def aclose(self) -> None:
        """Close all agents."""
        for one in self.made:
            await one.aclose()
        self.made.clear()
        self.idle.clear()


def _limit_options(agent: Agent[Any, Any], limits: Limits) -> AgentOptions:
    """Return the settings with a limit in US dollars on the tree of a turn."""
    mine = agent.settings.limits
    usd = min(limits.usd or 0.0, mine.tree.usd or limits.usd or 0.0)
    tree = mine.tree.model_copy(update={"usd": usd})
    return {"settings": agent.settings.model_copy(update={"limits": mine.model_copy(update={"tree": tree})})}


def _problem(blank: CaseResult, problem: str, turn: str = "") -> CaseResult:
    return CaseResult(blank.case, blank.digest, blank.number, turn, problem=problem)


def _newest(store: Store, session: str) -> TurnInfo | None:
    """Return the newest turn of a session, also after a compaction moved it into another session."""
    with store.database.reading() as c:
        session = newest_of(c, session)
    return next(iter(Turns(store.database).recent(1, session)), None)


def _cost(store: Store, turns: Sequence[str]) -> float | None:
    """Return the US dollars of turns and their children; ``None`` if a price is unknown."""
    query = "SELECT cost, cost_status FROM usage WHERE turn = ?"
    with store.database.reading() as c:
        every = [one for turn in turns for one in turn_tree(c, turn)]
        rows = [row for one in every for row in c.execute(query, (one,)).fetchall()]
    return None if any(status == "unknown" for _, status in rows) else sum(usd or 0.0 for usd, _ in rows)


# Kept runs


def refuse_name(name: str) -> None:
    """Raise ``ConfigError`` for an invalid run name."""
    if not NAME.fullmatch(name):
        raise ConfigError("a run cannot have this name", name, "1 to 64 letters, digits, dots, dashes")


def _next_name(names: Iterable[str]) -> str:
    numbers = [int(name[1:]) for name in names if re.fullmatch(r"r\d+", name)]
    return f"r{max(numbers, default=0) + 1}"


async def _keep(kept: KeptValues, run: EvalRun) -> None:
    results = [one.to_dict() for one in run.results]
    parts = [results[first : first + PART] for first in range(0, len(results), PART)]
    for number, part in enumerate(parts):
        await kept.put(f"{run.name}/{number}", part)
    await kept.put(run.name, {**{name: getattr(run, name) for name in _HEAD}, "parts": len(parts)})


def run_names(store: Store) -> list[str]:
    """Return the names of the runs in a store, oldest first."""
    kept = KeptValues(store, SOURCE)
    every = kept.keys()
    names = [name for name in every if "/" not in name]
    return sorted(names, key=lambda name: float(kept.get(name)["at"]))


def read_run(store: Store, name: str = "") -> EvalRun:
    """Return a run by name, by default the newest. Raises ``ConfigError``."""
    names = run_names(store)
    if not names:
        raise ConfigError("there is no evaluation yet", name or None, "fsm-agent eval run makes one")
    kept, name = KeptValues(store, SOURCE), name or names[-1]
    if name not in names:
        raise ConfigError("no such evaluation", name, near(name, names))
    head = kept.get(name)
    results = [
        CaseResult.from_dict(one) for part in range(head["parts"]) for one in kept.get(f"{name}/{part}")
    ]
    return EvalRun(
        **{one: head[one] for one in _HEAD if one != "names"},
        names=tuple(head["names"]),
        results=tuple(results),
    )


# Two runs


@dataclass(frozen=True, slots=True)
class Change:
    """A case with different scores in two runs."""

    case: str
    score: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two runs over their common cases: after minus before. ``differences``: statistics by
    score, with paired bootstrap intervals. ``changes``: cases with a different score. ``alone``: number of
    cases in only one run."""

    before: EvalRun
    after: EvalRun
    differences: Mapping[str, Figures | None]
    changes: tuple[Change, ...]
    alone: int

    def judge(self, gates: Iterable[str]) -> list[GateResult]:
        """Check gates against the differences. Raises ``ConfigError``."""
        return [Gate.of(one).judge(self.differences) for one in gates]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        figures = {name: one and asdict(one) for name, one in self.differences.items()}
        runs = {"before": self.before.name, "after": self.after.name}
        changes = [asdict(one) for one in self.changes]
        return {**runs, "differences": figures, "changes": changes, "alone": self.alone}


FIGURES = ("cost", "latency")
"""Scores that differ in every run: their changes are not listed."""


def compare(before: EvalRun, after: EvalRun, seed: int = 0) -> Comparison:
    """Compare two runs case by case. Raises ``ConfigError`` if they have no case or no score in common."""
    names = [name for name in before.names if name in after.names]
    cases = {one.case for one in before.results} & {one.case for one in after.results}
    if not names or not cases:
        what = "scores" if cases else "cases"
        raise ConfigError(
            f"the runs have no {what} in common", f"{before.name}, {after.name}", "runs over the same cases"
        )
    differences: dict[str, Figures | None] = {}
    changes: list[Change] = []
    for name in names:
        was, now = before.values(name), after.values(name)
        both = [case for case in was if case in now]
        differences[name] = Figures.of([now[case] - was[case] for case in both], seed)
        if name not in FIGURES:
            changes += [Change(case, name, was[case], now[case]) for case in both if was[case] != now[case]]
    every = {one.case for one in before.results} | {one.case for one in after.results}
    return Comparison(before, after, differences, tuple(changes), len(every) - len(cases))


def evaluate(
    agent: Agent[Any, Any],
    cases: Dataset | Sequence[Case],
    scores: Sequence[Any] = ("exact",),
    gates: Sequence[str] = (),
    *,
    name: str = "",
    usd: float | None = None,
    jobs: int = 4,
    repeat: int = 1,
    seed: int = 0,
) -> EvalRun:
    """Ask an agent all cases and score its answers. ``scores``: words, functions, ``Scorer`` or ``Judge``
    objects. Raises ``AssertionError`` if, with ``gates``, a case has no answer or a gate fails;
    ``ConfigError`` for invalid arguments."""
    dataset = cases if isinstance(cases, Dataset) else Dataset("cases", tuple(cases))
    wanted = [Gate.of(one) for one in gates]
    evaluation = Evaluation(agent, dataset, [scorer_of(one) for one in scores], usd, jobs, repeat, seed)
    names = {one.name: None for one in evaluation.scorers}
    for gate in wanted:
        gate.judge(names)
    run = LOOP.run(evaluation.run(name))
    failed = [str(one) for one in run.judge(wanted) if not one.ok]
    if wanted:
        failed += [f"{one.case}: {one.problem}" for one in run.unanswered]
    if failed:
        raise AssertionError("\n".join(failed))
    return run
