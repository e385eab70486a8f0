"""A table of its own: a writer drafts, a reviewer criticises, the writer revises until it is accepted.

``python -m examples.review_loop [--writer MODEL] [--reviewer MODEL] [TASK]``; by default it plays a
script."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from fsm_agent import Agent, BaseTurn, Workflow
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on
from fsm_agent.testing import ScriptedModel, repeat, text

WORKING, LIMITS = ("Draft", "Criticise", "Revise"), {"rounds": 3, "retries": 2, "unclears": 1}
REVISE = Rung("revise", "Revise", left("rounds"), ("rounds",))
ASK_AGAIN = Rung("ask again", "Criticise", left("unclears"), ("unclears",))
RETRY = {state: Rung("retry", state, left("retries"), ("retries",)) for state in WORKING}
STREAKS, FAILED = ("retries", "unclears"), end("model_failed", "Close")
WRITTEN = on("written", go("Criticise"), resets=("retries",), why="there is a text to look at")
LINES = {
    "Draft": [WRITTEN, on("failed", RETRY["Draft"], FAILED, why="the writer gave no text")],
    "Criticise": [
        on("accepted", end("accepted", "Close"), why="nothing is left to say against it"),
        on("objections", REVISE, end("rounds_spent", "Close"), resets=STREAKS, why="it says what is wrong"),
        on("unclear", ASK_AGAIN, end("no_verdict", "Close"), why="neither accepted nor criticised"),
        on("failed", RETRY["Criticise"], FAILED, why="the reviewer gave no text"),
    ],
    "Revise": [
        WRITTEN,
        on("unchanged", end("stalemate", "Close"), why="the writer keeps the text"),
        on("failed", RETRY["Revise"], FAILED, why="the writer gave no text"),
    ],
}
TABLE = Table(
    name="review",
    states=(*WORKING, "Close"),
    final="Close",
    counters=tuple(Counter(name) for name in LIMITS),
    lines=lines_of(LINES),
    macros=(("cancelled", dict.fromkeys(WORKING, "cancelled")), ("crashed", dict.fromkeys(WORKING, "bug"))),
)


@dataclass
class Review(BaseTurn):
    task: str
    text: str = ""
    objections: str = ""
    cancelled: bool = False
    usual_limits: ClassVar = LIMITS
    outcomes: ClassVar = {"accepted": "completed", "cancelled": "interrupted"}

    def interrupt(self, message: str | None) -> None:
        self.cancelled = True


@dataclass(frozen=True)
class Ask:
    """Let a model answer; ``attempt`` counts from 0. The reply is its text, empty when it failed."""

    role: Literal["writer", "reviewer"]
    prompt: str
    attempt: int
    reply: ClassVar[type] = str


def draft(turn: Review) -> Generator[Ask, str, str]:
    turn.text = yield Ask("writer", turn.task, turn.count("retries"))
    return "cancelled" if turn.cancelled else "written" if turn.text else "failed"


def criticise(turn: Review) -> Generator[Ask, str, str]:
    prompt = f"Task: {turn.task}\nText: {turn.text}\nBegin with ACCEPT, or with REVISE and say what is wrong."
    answer = yield Ask("reviewer", prompt, turn.count("retries"))
    verdict, _, turn.objections = answer.partition(" ")
    known = {"ACCEPT": "accepted", "REVISE": "objections" if turn.objections else "unclear", "": "failed"}
    return "cancelled" if turn.cancelled else known.get(verdict.strip(":,.").upper(), "unclear")


def revise(turn: Review) -> Generator[Ask, str, str]:
    prompt = f"Task: {turn.task}\nText: {turn.text}\nA reviewer says: {turn.objections}\nGive the new text."
    answer = yield Ask("writer", prompt, turn.count("retries"))
    event = "failed" if not answer else "unchanged" if answer == turn.text else "written"
    turn.text = answer or turn.text
    return "cancelled" if turn.cancelled else event


def workflow(
    writer: Any = None, reviewer: Any = None, home: Path | None = None, sleep: Any = asyncio.sleep
) -> Workflow[Review]:
    """Reviews by two models; by default scripted ones, whose writer does better after the first review."""
    better = "A machine that is in one of finitely many states and changes it by fixed rules."
    writes = repeat(lambda body: text(better if "A reviewer says" in str(body["messages"]) else "A machine."))
    judges = repeat(lambda body: text("ACCEPT" if better in str(body["messages"]) else "REVISE Which?"))
    models = {"writer": writer or ScriptedModel(writes), "reviewer": reviewer or ScriptedModel(judges)}

    async def ask(request: Ask) -> str:
        await sleep(2.0**request.attempt if request.attempt else 0)
        result = await Agent(models[request.role], toolsets=[], home=home).arun(request.prompt)
        return (result.final_response or "").strip() if result.completed else ""

    states = {"Draft": draft, "Criticise": criticise, "Revise": revise}
    return Workflow(TABLE, states, Review, {Ask: ask}, home=home)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--writer", "--reviewer"):
        parser.add_argument(name, metavar="PROVIDER:MODEL")
    parser.add_argument("task", nargs="?", default="One sentence that says what a finite-state machine is.")
    options = parser.parse_args()
    result = workflow(options.writer, options.reviewer).start(Review(options.task)).run()
    for step in result.steps:
        print(f"{step.seq:2}  {step.source:10} {step.event:11} → {step.dest}")
    print(f"\n{result.exit}: {result.turn.text}")
