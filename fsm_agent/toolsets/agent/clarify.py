"""A question of the model to the person (AGT-08)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field

from fsm_agent.approvals.service import user_of_machine
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import Stopwatch, wait_with_deadline
from fsm_agent.runtime.events import ClarifyAsked
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.settings.model import Settings
from fsm_agent.support.texts import clean
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.tools.result import AnswerLater, answer_result
from fsm_agent.toolsets.tool_context import here

MAX_CHOICES = 4
NOBODY = "No person is there to answer. Decide by yourself, say what you assumed, and continue."
GRACE = 30.0
"""Seconds that the tool's own limit is behind that of the question."""


class Questions:
    """Asks through the ``clarify`` callback, which waits for a person."""

    def __init__(self, callbacks: Callbacks, clock: Clock, settings: Settings, items: PendingItems) -> None:
        self._callbacks, self._clock, self._items = callbacks, clock, items
        self._suspends = settings.approval.unanswered == "suspend"
        self._timeout, self._poll = settings.approval.question_timeout, settings.poll.control

    async def clarify(
        self,
        question: Annotated[str, Field(min_length=1, max_length=4_000)],
        choices: Annotated[
            list[Annotated[str, Field(min_length=1, max_length=500)]] | None, Field(max_length=MAX_CHOICES)
        ] = None,
    ) -> dict[str, Any]:
        """Ask the person a question and wait for the answer. Only when you cannot work well without it.

        Args:
            question: What you want to know, with what one must know to answer it.
            choices: Up to four answers to choose from. The person may always answer something else.
        """
        asked = list(choices or ())
        if not self._callbacks.has("clarify"):
            raise AnswerLater(question, tuple(asked)) if self._suspends else ToolFailure(NOBODY)
        self._callbacks.publish(ClarifyAsked(question, asked))
        work, watch = (
            asyncio.ensure_future(self._callbacks.ask("clarify", question, asked)),
            Stopwatch(self._clock),
        )
        try:
            finish = await wait_with_deadline(
                work,
                left=lambda: self._timeout - watch.elapsed(),
                interrupted=here().interrupted,
                poll=self._poll,
            )
        finally:
            if not work.done():
                work.cancel()
        answer = work.result() if finish == "done" else None
        if answer is None or not str(answer).strip():
            if self._suspends and finish != "interrupted":
                raise AnswerLater(question, tuple(asked))
            late = (
                f"No answer within {self._timeout:g} seconds."
                if finish == "late"
                else "The person gave no answer."
            )
            raise ToolFailure(f"{late} Decide by yourself, say what you assumed, and continue.")
        words, scene = clean(str(answer)).strip(), here()
        if self._items.of_call(scene.turn_id, scene.call_id):  # it is asked elsewhere, too
            settle = (scene.fence, scene.call_id, "question", words, user_of_machine())
            words = await in_daemon_thread(self._items.settle, *settle)
        return answer_result(question, asked, words)


def clarify_tool(callbacks: Callbacks, clock: Clock, settings: Settings, store: Store) -> Tool:
    """Asking again after a crash does no harm."""
    timeout = settings.approval.question_timeout + GRACE
    return tool(concurrency="interactive", effect="pure", timeout=timeout)(
        Questions(callbacks, clock, settings, PendingItems(lambda: store.database, clock.now)).clarify
    )
