"""One conversation of an editor: its prompts, one turn after the other, and what stops them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Protocol

from acp.exceptions import RequestError
from acp.helpers import update_agent_message_text, update_available_commands
from acp.interfaces import Client
from acp.schema import AvailableCommand, AvailableCommandInput, PromptResponse, UnstructuredCommandInput

from fsm_agent.acp.told import EditorView
from fsm_agent.acp.words import STOPS, Blocks, content_of, replayed
from fsm_agent.agent import Agent
from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import TurnSuspended
from fsm_agent.sessions.store import store_for
from fsm_agent.support.texts import clean, one_line

RESUME = "resume"
"""The command that goes on with a turn that was left unfinished."""
FAILED = -32603
"""The code of an answer to a prompt whose turn failed."""
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(\S.*))?\s*", re.DOTALL)


class EditorHost(Protocol):
    """The program around the server."""

    reads: frozenset[str]
    """What the model reads besides text: image, audio, file."""
    yes: bool
    """Nobody is asked whether a call may run."""
    commands: Mapping[str, tuple[str, str]]
    """What a person may write after a slash: what it does, and what may stand behind it."""

    def agent(self, view: EditorView, workdir: Path, session: str | None) -> Agent:
        """Make the agent of a session. Raises ``ConfigError``."""
        ...

    def obey(self, agent: Agent, command: str, words: str) -> Awaitable[str]:
        """Do what a command says, and return an answer in words."""
        ...


class EditorTalk:
    """A session that an editor has open. ``stored``: the name of one that is there already."""

    def __init__(
        self, host: EditorHost, client: Client, workdir: Path, stored: str | None = None, notice: str = ""
    ) -> None:
        self._host, self._workdir, self._notice = host, workdir, notice
        self._view = EditorView(client, workdir, yes=host.yes)
        try:
            self._agent = host.agent(self._view, workdir, stored)
        except BaseException:
            self._view.close()
            raise
        self.id = self._view.session_id = stored or self._agent.session_id
        self._asked: list[asyncio.Task[PromptResponse]] = []
        self._dropped: set[asyncio.Task[PromptResponse]] = set()

    # Beginning

    def offer(self) -> None:
        """Tell which commands there are."""
        commands = dict(self._host.commands)
        if self._unfinished():
            commands[RESUME] = ("Go on with the turn that was left unfinished", "")
        self._view.tell(update_available_commands(_command(name, *told) for name, told in commands.items()))

    async def replay(self) -> None:
        """Tell what was said, and what was left unfinished."""
        home, url = self._agent.home, self._agent.settings.store.database
        for update in replayed(
            store_for(home, database_url=url).newest(self._agent.session_id).rows, self._workdir
        ):
            self._view.tell(update)
        if asked := self._unfinished():
            self._view.note(
                f"the last turn was left unfinished: “{one_line(asked, 60)}”; /{RESUME} goes on with it,"
                " another message gives it up"
            )
        await self._view.settled()

    def _unfinished(self) -> str:
        newest = next(iter(self._agent.journal.recent(1, self._agent.session_id)), None)
        return "" if newest is None or newest.ended is not None else newest.asked or "(no words)"

    # Prompts

    async def prompt(self, blocks: Blocks) -> PromptResponse:
        """Answer a prompt. One that comes while a turn runs waits, is told to the model, or ends the turn, as
        ``interrupt.second_message`` says. Raises ``RequestError`` for a turn that failed, ``FsmAgentError``
        for a prompt that cannot be used."""
        work = asyncio.ensure_future(self._answer(blocks))
        self._asked.append(work)
        try:
            return await work
        except asyncio.CancelledError:
            if work not in self._dropped:
                raise  # the connection is closed: the turn can be gone on with
            return PromptResponse(stop_reason="cancelled")
        finally:
            self._asked.remove(work)
            self._dropped.discard(work)
            if not self._asked:
                self._agent.signals.clear()  # what came too late for the turn is no word to the next one

    async def _answer(self, blocks: Blocks) -> PromptResponse:
        content = await asyncio.to_thread(content_of, blocks)
        if self._notice:
            self._view.note(self._notice)
            self._notice = ""
        found = _COMMAND.fullmatch(content) if isinstance(content, str) else None
        if found is not None and found[1] in self._host.commands:
            said = await self._host.obey(self._agent, found[1], (found[2] or "").strip())
            self._view.tell(update_agent_message_text(clean(said)))
            await self._view.settled()
            return PromptResponse(stop_reason="end_turn")
        try:
            if found is not None and found[1] == RESUME:
                result = await self._agent.resume(self._agent.session_id).arun()
            else:
                result = await self._agent.arun(content)
        except TurnSuspended as waits:
            self._view.note(f"{waits}; answer it with fsm-agent pending answer, then say /{RESUME}")
            await self._view.settled()
            return PromptResponse(stop_reason="end_turn", field_meta={"fsm_agent": {"turn": waits.turn_id}})
        self._view.finish(result)
        await self._view.settled()
        return _ended(result)

    def cancel(self) -> None:
        """End the turn that runs, and the prompts that wait behind it."""
        if not self._asked:
            return
        self._agent.interrupt()
        for waiting in self._asked[1:]:
            self._dropped.add(waiting)
            waiting.cancel()

    @property
    def busy(self) -> bool:
        """Whether a prompt is being answered."""
        return bool(self._asked)

    async def aclose(self) -> None:
        """Let the session go. A turn that runs is left where it is."""
        for work in self._asked:
            work.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        self._view.close()
        await self._agent.aclose()


def _ended(result: TurnResult) -> PromptResponse:
    reason = result.turn_exit_reason
    about = {
        "fsm_agent": {"exit_reason": reason.value, "outcome": reason.outcome.value, "turn": result.turn_id}
    }
    stop = STOPS[reason]
    if stop is None:
        line = one_line(result.error or result.final_response or reason.value.replace("_", " "))
        raise RequestError(FAILED, line, about["fsm_agent"])
    return PromptResponse(stop_reason=stop, field_meta=about)


def _command(name: str, does: str, behind: str) -> AvailableCommand:
    hint = AvailableCommandInput(UnstructuredCommandInput(hint=behind)) if behind else None
    return AvailableCommand(name=name, description=does, input=hint)
