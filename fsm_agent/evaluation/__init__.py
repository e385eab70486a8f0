"""Evaluation: how well an agent answers cases, what it costs, and whether a change made it better.

>>> from fsm_agent.evaluation import Case, evaluate
>>> cases = [Case("oslo", "The capital of Norway?", "Oslo")]
>>> run = evaluate(agent, cases, ["contains", "cost"], gates=["contains>=0.9"])  # doctest: +SKIP
>>> run.figures["contains"].mean  # doctest: +SKIP

``fsm-agent eval`` does the same in a terminal, and ``evaluate`` is a fixture of the pytest plugin. The turns
are ordinary sessions of the home: a case that the same agent has answered is not asked again."""

from fsm_agent.evaluation.cases import Case, Dataset, cases_from_turns, read_cases, write_cases
from fsm_agent.evaluation.run import CaseResult, EvalRun, Evaluation, compare, evaluate, read_run
from fsm_agent.evaluation.scores import Answer, Figures, Gate, GateResult, Judge, Score, Scorer

__all__ = [
    "Answer",
    "Case",
    "CaseResult",
    "Dataset",
    "EvalRun",
    "Evaluation",
    "Figures",
    "Gate",
    "GateResult",
    "Judge",
    "Score",
    "Scorer",
    "cases_from_turns",
    "compare",
    "evaluate",
    "read_cases",
    "read_run",
    "write_cases",
]
