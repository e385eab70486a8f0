"""Run a review: ``python -m examples.review_loop.main [--writer MODEL] [--reviewer MODEL] [TASK]``.

Without models it plays a script.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.review_loop.review import Review
from examples.review_loop.turn import ReviewTurn
from fsm_agent import Agent, Step
from fsm_agent.support.clock import SystemClock
from fsm_agent.testing import ScriptedModel, text

TASK = "One sentence that says what a finite-state machine is."
WRITER = ("A machine with states.", "A machine that is in exactly one of finitely many states and changes it by fixed rules.")
REVIEWER = ("REVISE It does not say how the state changes.", "ACCEPT")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the text was accepted, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--writer", metavar="MODEL", help='for example "openai:gpt-5-mini"; default: a script')
    parser.add_argument("--reviewer", metavar="MODEL", help='for example "anthropic:claude-sonnet-5"; default: a script')
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        writer = agent(options.writer or ScriptedModel(map(text, WRITER)), "You write short texts.", Path(home, "writer"))
        reviewer = agent(options.reviewer or ScriptedModel(map(text, REVIEWER)), "You judge texts.", Path(home, "reviewer"))
        try:
            return asyncio.run(reviewed(options.task, writer, reviewer))
        finally:
            writer.close()
            reviewer.close()


def agent(model: Any, prompt: str, home: Path) -> Agent:
    return Agent(model, toolsets=[], system_prompt=prompt, home=home)


async def reviewed(task: str, writer: Agent, reviewer: Agent) -> int:
    """Step through one review, saying why it moved."""
    review = Review(ReviewTurn("review-1", task), writer, reviewer, SystemClock())
    async for step in review:
        print(told(step))
    print(f"\n{review.turn.exit}: {review.turn.text or review.turn.problem}")
    return 0 if review.turn.exit == "accepted" else 1


def told(step: Step) -> str:
    guards = ", ".join(f"{label}: {'yes' if value else 'no'}" for label, value in step.guards)
    return f"{step.seq:2}  {step.source:10} {step.event:11} → {step.dest:10} {f'({guards})' if guards else ''}".rstrip()


if __name__ == "__main__":
    raise SystemExit(main())
