"""``Agent``: combines a model, tools, settings and a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, cast, overload

from typing_extensions import TypeForm, TypeVar, Unpack

from fsm_agent.approvals.service import answer
from fsm_agent.composition.services import Services, with_model
from fsm_agent.composition.turns import AgentTurns
from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.conversation.result import HandoffStep, TurnResult, next_turn_id
from fsm_agent.errors import ConfigError, TurnFailed
from fsm_agent.features.other_agents import OtherAgents, agent_tool, speaker_after, speaker_of
from fsm_agent.options import (
    AgentArguments,
    AgentOptions,
    Content,
    Deps,
    History,
    Model,
    TurnArguments,
    TurnOptions,
    options_of,
)
from fsm_agent.runtime.events import Pieces
from fsm_agent.sessions.store import Claim, Store
from fsm_agent.sessions.store.database import Job
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.sessions.store.stored_sessions import any_turn, rename
from fsm_agent.sessions.turn import DurableTurn
from fsm_agent.sessions.turn_limiter import HandoffChain, MessageQueue
from fsm_agent.settings import Limits
from fsm_agent.support.threads import LOOP, warn_if_blocking
from fsm_agent.tools import Tool
from fsm_agent.toolsets.agent import Background

if TYPE_CHECKING:
    from fsm_agent.sessions.store.edits import Undone
    from fsm_agent.toolsets.mcp import McpServers

Out = TypeVar("Out", default=str)
Other = TypeVar("Other")
AsyncFunction = Callable[..., Coroutine[Any, Any, Other]]
Turn = DurableTurn[TurnResult[Out]]
"""The turn of one user message: a ``DurableTurn`` whose result is a ``TurnResult``."""


class Agent(Generic[Deps, Out]):
    """An agent: a model, tools, settings, and a session that continues from turn to turn.

    Args:
        model: ``"<provider>:<model>"``, a ``ModelPort`` (a scripted one, for instance), or ``None`` for
            the first available: ``FSM_AGENT_MODEL``, a key in the environment, a local server, or the offline
            demo.
        output_type: The type of its answers: a pydantic model, a dataclass, a ``TypedDict``, another type or
            union, a function whose parameters the model fills in and whose result is the answer, or a
            ``JsonSchema`` (``fsm_agent.output``); ``None`` for text.
        more: All other arguments, by keyword; ``fsm_agent.options.AgentArguments`` describes
            them.

    Raises:
        ConfigError: For any invalid argument, in one line.
    """

    @overload
    def __init__(
        self, model: Model = None, *, output_type: None = None, **more: Unpack[AgentArguments]
    ) -> None: ...
    @overload
    def __init__(
        self, model: Model = None, *, output_type: TypeForm[Out], **more: Unpack[AgentArguments]
    ) -> None: ...
    @overload
    def __init__(
        self, model: Model = None, *, output_type: AsyncFunction[Out], **more: Unpack[AgentArguments]
    ) -> None: ...
    @overload
    def __init__(
        self, model: Model = None, *, output_type: Callable[..., Out], **more: Unpack[AgentArguments]
    ) -> None: ...
    def __init__(
        self, model: Model = None, *, output_type: Any = None, **more: Unpack[AgentArguments]
    ) -> None:
        self._options = options = options_of({"model": model, "output_type": output_type, **more})
        self._services = services = Services(options, Agent.of)
        self._turns = AgentTurns(options, services)
        self._queue = MessageQueue(services.settings.interrupt.second_message, services.signals)
        self._others: OtherAgents[Agent[Any, Any]] = OtherAgents(self, services, Agent.of)
        self.home, self.settings, self.signals = services.home, services.settings, services.signals

    @classmethod
    def of(cls, options: AgentOptions) -> Self:
        """Make the agent that these options describe. Raises ``ConfigError``."""
        return cls(**options)

    @property
    def session_id(self) -> str:
        """The session of the agent's next turn."""
        return self._turns.session_id

    @session_id.setter
    def session_id(self, session_id: str) -> None:
        self._turns.session_id = session_id

    @property
    def store(self) -> Store:
        """The store of the agent's sessions."""
        return self._turns.store

    # Turns

    def chat(self, user_message: Content, *, deps: Deps | None = None) -> str:
        """Run one turn and return its text, even if the answer is partial or interrupted. Raises
        ``TurnFailed``, which has the result, for a failed turn; ``run_conversation`` returns the result."""
        result = self.run_conversation(user_message, deps=deps)
        if result.failed:
            raise TurnFailed(result)
        return result.final_response or ""

    @overload
    def run_conversation(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: History | None = None,
        task_id: str | None = None,
        **more: Unpack[TurnOptions[Deps]],
    ) -> TurnResult[Out]: ...
    @overload
    def run_conversation(
        self, user_message: Content, *, output_type: TypeForm[Other], **more: Unpack[TurnArguments[Deps]]
    ) -> TurnResult[Other]: ...
    @overload
    def run_conversation(
        self, user_message: Content, *, output_type: AsyncFunction[Other], **more: Unpack[TurnArguments[Deps]]
    ) -> TurnResult[Other]: ...
    @overload
    def run_conversation(
        self, user_message: Content, *, output_type: Callable[..., Other], **more: Unpack[TurnArguments[Deps]]
    ) -> TurnResult[Other]: ...
    def run_conversation(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: History | None = None,
        task_id: str | None = None,
        *,
        output_type: Any = None,
        **more: Unpack[TurnOptions[Deps]],
    ) -> TurnResult[Any]:
        """Run one turn synchronously. Inside a running event loop, such as a notebook's, this blocks the loop
        until the turn has ended and issues a ``RuntimeWarning``; ``arun`` does not block it. While another
        turn runs, the setting ``interrupt.second_message`` decides; by default ``SessionBusy`` is raised. If
        the turn hands the conversation over, the other agent's turn follows; the result is that of the last
        turn. Raises ``TurnSuspended`` if the turn has to wait for an answer, see ``pending``."""
        warn_if_blocking("run_conversation", "await agent.arun(…)")
        given = (user_message, system_message, conversation_history, task_id)
        return LOOP.run(self._run(given, output_type, more))

    @overload
    async def arun(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: History | None = None,
        task_id: str | None = None,
        **more: Unpack[TurnOptions[Deps]],
    ) -> TurnResult[Out]: ...
    @overload
    async def arun(
        self, user_message: Content, *, output_type: TypeForm[Other], **more: Unpack[TurnArguments[Deps]]
    ) -> TurnResult[Other]: ...
    @overload
    async def arun(
        self, user_message: Content, *, output_type: AsyncFunction[Other], **more: Unpack[TurnArguments[Deps]]
    ) -> TurnResult[Other]: ...
    @overload
    async def arun(
        self, user_message: Content, *, output_type: Callable[..., Other], **more: Unpack[TurnArguments[Deps]]
    ) -> TurnResult[Other]: ...
    async def arun(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: History | None = None,
        task_id: str | None = None,
        *,
        output_type: Any = None,
        **more: Unpack[TurnOptions[Deps]],
    ) -> TurnResult[Any]:
        """``run_conversation``, asynchronously."""
        message = await self._turns.read_message(user_message)
        return await self._run((message, system_message, conversation_history, task_id), output_type, more)

    def _run(
        self, given: tuple[Any, ...], output_type: Any, more: TurnOptions[Deps]
    ) -> Coroutine[Any, Any, TurnResult[Any]]:
        turn = self._turns.start(*given, output_type=output_type, **more)
        alike = output_type is None and more.get("limits") is None
        return self._queue.run(self._chain(turn, output_type, more), given[0] if alike else None)

    def stream_text(
        self, user_message: Content, *, output_type: Any = None, **more: Unpack[TurnArguments[Deps]]
    ) -> AsyncGenerator[str]:
        """Run one turn and yield its text in pieces as they arrive, including text beside tool calls and that
        of the agents that the turn hands the conversation over to. An answer that no provider streamed, such
        as the explanation of a limit, is one piece. Leaving the loop early stops the turn at that point.
        ``turn.events()`` yields everything else that happens. Raises ``TurnFailed`` at the end of a failed
        turn, ``TurnSuspended`` as ``run_conversation`` does."""
        start = partial(self._turns.start, output_type=output_type, **more)

        async def begin() -> Turn[Any]:  # the parts of a message may take seconds
            return start(await self._turns.read_message(user_message))

        self._turns.refuse(user_message, **more)
        first = start(user_message) if isinstance(user_message, str) else None
        chain = self._chain(first, output_type, more)
        return Pieces(chain.stream_text(begin), chain.leave)

    def _chain(self, turn: Turn[Any] | None, output_type: Any, more: TurnOptions[Deps]) -> HandoffChain:
        deps, limits = more.get("deps"), more.get("limits")
        return HandoffChain(turn, partial(self.following, deps=deps, output_type=output_type, limits=limits))

    @overload
    def start(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: History | None = None,
        task_id: str | None = None,
        **more: Unpack[TurnOptions[Deps]],
    ) -> Turn[Out]: ...
    @overload
    def start(
        self, user_message: Content, *, output_type: TypeForm[Other], **more: Unpack[TurnArguments[Deps]]
    ) -> Turn[Other]: ...
    @overload
    def start(
        self, user_message: Content, *, output_type: AsyncFunction[Other], **more: Unpack[TurnArguments[Deps]]
    ) -> Turn[Other]: ...
    @overload
    def start(
        self, user_message: Content, *, output_type: Callable[..., Other], **more: Unpack[TurnArguments[Deps]]
    ) -> Turn[Other]: ...
    def start(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: History | None = None,
        task_id: str | None = None,
        *,
        output_type: Any = None,
        **more: Unpack[TurnOptions[Deps]],
    ) -> Turn[Any]:
        """Make a turn that has not moved yet. ``user_message``: text, or content parts in any form of
        ``fsm_agent.conversation.parts``; an image or a PDF may take seconds. ``conversation_history``
        replaces the session's rows and is never changed; system rows at its beginning join
        ``system_message``. ``output_type``: of this answer, instead of the agent's, whichever agent gives it;
        ``str`` for text. ``more``: see ``fsm_agent.options.TurnOptions``.

        Raises ``ConfigError`` for tools that need missing ``deps``, for a message that is empty or too long,
        for a part that is unusable or that the model cannot read, for a history with invalid rows or with a
        system row after others, and for an ``ephemeral_prompt`` that is not text.
        """
        given = (system_message, conversation_history, task_id)
        return self._turns.start(user_message, *given, output_type=output_type, **more)

    def begin_queued(
        self, turn_id: str, request: Mapping[str, Any], begins: Job, *, deps: Deps | None = None
    ) -> Turn[Out]:
        """Make the turn of a message that was queued under this id; the conversation's current agent answers.
        ``request``: the arguments of ``start``. ``begins`` runs in the transaction that begins the turn, and
        may raise to prevent it. Raises ``ConfigError`` as ``start`` does."""
        from fsm_agent.sessions.store.queued import arguments_of

        asked = arguments_of(request)
        return self.speaker()._turns.start(**asked, deps=deps, turn_id=turn_id, begins=begins)

    def resume(
        self,
        session_or_turn_id: str,
        *,
        deps: Deps | None = None,
        output_type: Any = None,
        claim: Claim | None = None,
    ) -> Turn[Out]:
        """Resume an unfinished turn where its process ended: by its id or a prefix, or by the id, prefix or
        title of its session. Tool calls that were running then are not repeated unless they are pure or
        idempotent; the model learns of them. A suspended turn continues if its answer is available; otherwise
        the people present are asked, or it is suspended again. For a session whose last turn handed the
        conversation over, this is the other agent's turn, unless it has begun. ``deps``: as for ``start``,
        for the rest of the turn. ``output_type``: as for ``start``, and it has to be given again; without it,
        if the agent's type differs, the answer is plain data by the stored schema. ``claim``: the result of
        ``Store.claim`` for the turn; then its owner is not checked. Raises ``ConfigError`` if there is
        nothing to resume, ``SessionBusy`` while another process runs it."""
        if not self._options["handoffs"]:
            return self._turns.resume(session_or_turn_id, deps, output_type, claim)
        left = speaker_after(self.journal, any_turn(self.store, session_or_turn_id))
        if left.handoffs and left == speaker_of(self.store, left.turn.session):
            wanted = {"deps": deps, "output_type": output_type}
            return self._take_over(left.turn.session, left.handoffs, left.task_id, **wanted)
        speaker = self._others.find(left.agent, self.session_id)
        return speaker._turns.resume(session_or_turn_id, deps, output_type, claim)

    def fork(
        self,
        turn_id: str,
        at: int,
        edit: Mapping[str, Any] | None = None,
        *,
        deps: Deps | None = None,
        output_type: Any = None,
    ) -> Turn[Out]:
        """Make a turn, in a session of its own, that begins where ``turn_id`` was after ``at`` moves, with
        the changes of ``edit`` (``fsm_agent.sessions.store.edits.edit_position`` describes them). The old
        turn stays as it is. ``deps``, ``output_type``: as for ``resume``. Raises ``ConfigError``."""
        return self._turns.fork(turn_id, at, edit or {}, deps, output_type)

    # Pending answers, and messages to a running turn

    def pending(self) -> list[Pending]:
        """Return what the suspended turns of this home wait for, oldest first: questions, approvals, late
        results, timers."""
        return self._services.pending.open()

    def answer(self, pending_id: str, value: Any = None, *, pattern: str = "", by: str = "") -> Pending:
        """Answer the pending item with this id, whichever process asked; then ``resume`` its ``turn``.
        ``value``: for an approval "once", "session", "always", "deny" or "never", where the longer ones hold
        for ``pattern``; for a question, words or the number of a choice; for a result, any return value of
        the tool; for a timer, nothing or the result of the call. ``by``: the person who answers, by default
        the user of this machine. Raises ``ConfigError`` for an invalid answer, for an item that no longer
        waits, and for a second answer."""
        return answer(self._services.pending, pending_id, value, pattern=pattern, by=by)

    def interrupt(self, message: str | None = None) -> None:
        """Stop the running turn, or the next one before its first request. From any thread; idempotent."""
        self.signals.interrupt(message)

    def steer(self, text: str) -> None:
        """Send the running turn a message without stopping it: the model reads it with the next tool
        result."""
        self.signals.steer(text)

    # The session

    async def acompact(self, focus: str = "") -> dict[str, Any] | None:
        """Shorten the session now; ``focus`` is the subject of its summary. Return the figures of the
        compaction, or ``None`` if nothing could be shortened. This ends a pause of automatic compactions."""
        return await self._turns.compact(focus)

    def compact(self, focus: str = "") -> dict[str, Any] | None:
        """``acompact``, synchronously."""
        return LOOP.run(self.acompact(focus))

    async def aundo(self, turns: int = 1, *, files: bool = False) -> Undone:
        """Undo the session's last turns, including an unfinished one: the transcript is restored to its
        earlier state, and nothing is deleted. Effects of tools remain; with ``files``, the files of the
        working directory are restored from the checkpoint before these turns, whatever changed them since.
        Raises ``ConfigError`` when the session has fewer turns, ``SessionBusy`` while a turn is running,
        ``StoreError`` when the files cannot be restored."""
        return await self._turns.undo(turns, files=files)

    def undo(self, turns: int = 1, *, files: bool = False) -> Undone:
        """``aundo``, synchronously."""
        return LOOP.run(self.aundo(turns, files=files))

    @property
    def title(self) -> str:
        """The session's title: the first words of its first message, until it is renamed.
        Empty before its first turn."""
        return self._turns.session().title

    def rename(self, title: str) -> str:
        """Rename the session and return its new title. Raises ``ConfigError`` for a title of another session,
        and before the session's first turn."""
        return rename(self.store, self._turns.session().id, title)

    @property
    def context_used(self) -> float:
        """The share of the model's window that this session fills, from 0; 0 if the window is unknown. A host
        that keeps sessions open calls ``compact`` between turns once ``settings.compression.host_threshold``
        is reached."""
        window = self._services.backends.runtime().window
        return self._turns.session().meter.tokens / window if window else 0.0

    # The agent

    @property
    def options(self) -> AgentOptions:
        """The agent's options; if no model was named, including the one that was found."""
        return with_model(self._options, self._services.backends)

    @property
    def journal(self) -> Turns:
        """The turns of this home: their moves, requests, snapshots and results."""
        return self._turns.journal

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The specifications of the tools that the model may call."""
        return self._services.tools.specs

    def as_tool(
        self, name: str | None = None, description: str = "", max_iterations: int | None = None
    ) -> Tool:
        """Return this agent as a tool for the ``tools`` of other agents. A call is a child turn with its own
        history, under this agent's model, prompt, tools and settings, in the calling agent's store and within
        the limits of its tree (``settings.delegation``); the answer is the result. ``name``: of the tool, and
        of the agent in those turns; by default its own. ``description``: when to ask it, for the model.
        ``max_iterations`` of one call; by default the setting. Raises ``ConfigError``."""
        known = self.options if name is None else AgentOptions(**{**self.options, "name": name})
        return agent_tool(known, self.settings, description, max_iterations)

    @property
    def servers(self) -> McpServers | None:
        """The agent's MCP servers, whose prompts and resources a person may request; ``None`` without any."""
        return cast("McpServers | None", self._services.more)

    @property
    def background(self) -> Background:
        """The model's background tasks: those that are running, and a way to wait for them. Raises
        ``ConfigError`` for a child, which has none."""
        if self._services.background is None:
            raise ConfigError(
                "a child has no tasks in the background", self.session_id, "the agent that a person talks to"
            )
        return self._services.background

    async def aclose(self) -> None:
        """Stop background tasks where they are, for the session's next turn to resume; store what an external
        memory has not received yet; close the agent's connections and programs. A turn that waits for a slot
        (``max_turns_at_once``) ends with a ``ConfigError``."""
        self._turns.limiter.close()
        if self._services.background is not None:
            await self._services.background.aclose()
        for other in self._others:
            await other.aclose()
        await self._turns.aclose()

    def close(self) -> None:
        """``aclose``, synchronously."""
        LOOP.run(self.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # Handoffs

    def following(
        self,
        result: TurnResult,
        *,
        deps: Deps | None = None,
        output_type: Any = None,
        limits: Limits | None = None,
    ) -> Turn[Any] | None:
        """Return the turn of the agent to which the turn with this result handed the conversation over;
        ``None`` if it did not. ``deps``, ``output_type``, ``limits``: as for ``start``."""
        self.session_id = result.session_id
        if result.turn_exit_reason != "handed_over":
            return None
        wanted = {"deps": deps, "output_type": output_type, "limits": limits}
        return self._take_over(result.session_id, tuple(result.handoffs), result.task_id, **wanted)

    def _take_over(
        self, session_id: str, handoffs: tuple[HandoffStep, ...], task_id: str, **wanted: Any
    ) -> Turn[Any]:
        """Return the turn of the agent that takes over a conversation. Raises ``ConfigError`` if this agent
        does not know it."""
        session = self.store.newest(session_id)
        other, history = self._others.taking_over(session.id, handoffs[-1], session.rows)
        wanted |= {"turn_id": next_turn_id(session.id, handoffs[-1].turn_id), "handoffs": handoffs}
        return other._turns.start(handoffs[-1].message, None, history, task_id, **wanted)

    def speaker(self) -> Agent[Any, Any]:
        """Return the current agent of the conversation: the one that ran its last turn or received it from
        it; this agent if it does not know the other. Its turns are in the same session."""
        left = speaker_of(self.store, self.session_id)
        return self if left is None else self._others.find(left.agent, self.session_id)
