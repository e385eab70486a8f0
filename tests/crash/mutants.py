"""Engines with one fault each in how they write things down. The kill matrix must notice every one of
them."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from typing import Any

from fsm_agent import Agent
from fsm_agent.conversation.effects import MODEL, TOOL, RunTool
from fsm_agent.fsm.journal import UNKNOWN, Step
from fsm_agent.request import Flush, Needed, flush_of
from fsm_agent.sessions.store.database import Job
from fsm_agent.sessions.store.journal import Closing
from fsm_agent.sessions.store.journal.conversation_journal import ConversationLog, ConversationRecording
from tests.crash.scene import CrashingDatabase, assert_takes_the_place, logging_with


class NoIntent(ConversationLog):
    """Tools start without a word in the journal."""

    def _intent(self, row: tuple[Any, ...]) -> Job:
        return lambda connection: None


class SplitTransaction(ConversationLog):
    """The rows of a move and the move itself are two transactions."""

    async def moved(self, step: Step) -> None:
        delta = self._tracker.delta() | self._rows_delta()
        jobs, self._jobs = self._jobs, [self._transition(step, delta)]
        self._recording = ConversationRecording()
        await self._commit()
        self._jobs = jobs
        self._note_session()
        await self._commit()


class Eager(ConversationLog):
    """What must be on disk before something happens is not waited for; ``early`` is what that is."""

    early: Flush

    def needs(self, request: Any) -> Needed:
        return "nothing" if flush_of(request) is self.early else super().needs(request)


class EagerModel(Eager):
    early = MODEL


class EagerTool(Eager):
    early = TOOL


class EagerEnd(ConversationLog):
    """The result is returned before it is stored."""

    async def end(self, closing: Closing) -> None:
        self._jobs.append(self._end(closing, "{}"))
        self._hand_over()


class Repeating(ConversationRecording):
    """What was in flight is simply done again."""

    def reply(self, ordinal: int, place: int, request: Any) -> Any:
        entry = self.entries.get((ordinal, place))
        if isinstance(request, RunTool) and entry is not None and entry.reply is None:
            return UNKNOWN
        return super().reply(ordinal, place, request)


class EarlyDatabase(CrashingDatabase):
    """Tells everybody that it is done before it is, where the crash comes."""

    def commit_group(self, connection: Any, group: list[tuple[Job, Future[Any], bool]]) -> bool:
        if self.crash.point == ("before", self.crash.counts.get("before", 0) + 1):
            for job, future, _ in group:
                connection.execute("BEGIN")
                result = job(connection)
                connection.execute("ROLLBACK")
                future.set_result(result)
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().commit_group(connection, group)


assert_takes_the_place(
    NoIntent, SplitTransaction, EagerModel, EagerTool, EagerEnd, Repeating, EarlyDatabase, new="early"
)


class RepeatingLog(ConversationLog):
    def began(self, known: ConversationRecording | None = None) -> None:
        super().began(known and Repeating(known.entries))


MUTANTS: dict[str, tuple[type[Agent], type[CrashingDatabase]]] = {
    "no intent row": (logging_with(NoIntent), CrashingDatabase),
    "split transaction": (logging_with(SplitTransaction), CrashingDatabase),
    "model asked before its row is safe": (logging_with(EagerModel), CrashingDatabase),
    "tool run before its intent is safe": (logging_with(EagerTool), CrashingDatabase),
    "result returned before it is safe": (logging_with(EagerEnd), CrashingDatabase),
    "repeat unsafe": (logging_with(RepeatingLog), CrashingDatabase),
    "acknowledge before commit": (Agent, EarlyDatabase),
}
