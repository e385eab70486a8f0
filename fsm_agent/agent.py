"""``Agent``: a model, tools, settings and a session, put together."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from fsm_agent.composition.agent_factory import composed
from fsm_agent.composition.effect_handler import EffectHandler
from fsm_agent.composition.intake import history_of, message_of
from fsm_agent.composition.options import DEFAULT_TOOLSETS, AgentOptions, Inherited
from fsm_agent.composition.request_books import RequestBooks
from fsm_agent.composition.turn_wiring import (
    COUNTERS,
    DIGEST,
    KIND,
    MACHINE,
    STATES,
    TurnState,
    compacted,
    continued,
    ending_of,
    joined,
    reopened,
    result_of,
)
from fsm_agent.conversation.effects import CloseTurn, Compacted, OpenTurn
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import AudioPart, FilePart, ImagePart, Part
from fsm_agent.conversation.result import TurnResult
from fsm_agent.conversation.supplied import supplied_history
from fsm_agent.errors import ConfigError, SessionBusy, StoreError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.fsm.properties import watcher
from fsm_agent.fsm.runner import Runner
from fsm_agent.memory.provider import MemoryProvider
from fsm_agent.memory.snapshot import recalled
from fsm_agent.prompt import Sources, prompt_of
from fsm_agent.providers.credentials import ApiKey
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.sessions.checkpoints import PutBack
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.session_lease import SessionLease
from fsm_agent.sessions.store import Begun, ConversationLog, ConversationRecording, NewTurn, Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.names import find_turn, name_after, rename
from fsm_agent.sessions.store.rewind.edits import edited
from fsm_agent.sessions.store.rewind.positions import Position, forked, position_of, take_over
from fsm_agent.sessions.store.rewind.undo import Undone, undo
from fsm_agent.sessions.store.rows import asked_words
from fsm_agent.sessions.turn import Turn
from fsm_agent.sessions.turn_line import TurnLine
from fsm_agent.settings.model import Settings
from fsm_agent.support.threads import LOOP
from fsm_agent.tools import Tool
from fsm_agent.toolsets.agent import Background
from fsm_agent.toolsets.agent.posted import children_of, spent_below

Content = (
    str | Part | ImagePart | AudioPart | FilePart | Sequence[str | Part | ImagePart | AudioPart | FilePart]
)
"""What a user can say: text, a content part, or several of them."""


class Agent:
    """An agent: a model, tools, settings, and a session that goes on from turn to turn.

    ``model``: ``"<provider>:<model>"``, a ``ModelPort`` (a scripted one for instance), or ``None`` to take
    what is there: ``FSM_AGENT_MODEL``, a key in the environment, a local server, else the offline demo.
    ``api_key``: a string, a list, or an object with ``get()`` and ``refresh()``. ``tools``: decorated or
    plain functions. ``toolsets``: names of built-in groups (``fsm_agent.toolsets``,
    ``fsm_agent.toolsets.agent``), ``[]`` for none. ``fallbacks``: dicts with the keys model (or a port),
    base_url, api_key, api_mode, context_window. ``callbacks``: see ``fsm_agent.runtime.callbacks``.
    ``clock``: every wait and time limit goes through it. ``budget``: iterations shared with other agents.
    ``auxiliary``: smaller models for summaries, a dict like those of ``fallbacks`` or a list of them; the
    main model is used when they fail. ``memory``: an external memory besides the files in the home directory.
    ``mcp``: MCP servers by name instead of those in ``config.toml``, see ``fsm_agent.toolsets.mcp``.
    ``source``: what its new sessions are begun by, in lists and insights.

    Raises ``ConfigError`` for anything that cannot be used, in one line.
    """

    def __init__(
        self,
        model: str | ModelPort | None = None,
        *,
        base_url: str | None = None,
        api_mode: str | None = None,
        api_key: ApiKey = None,
        context_window: int | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        toolsets: Sequence[str] = DEFAULT_TOOLSETS,
        system_prompt: str | None = None,
        fallbacks: Sequence[Mapping[str, Any]] | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        home: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        callbacks: object | Mapping[str, Callable[..., Any]] | None = None,
        clock: Clock | None = None,
        budget: IterationBudget | None = None,
        auxiliary: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        memory: MemoryProvider | None = None,
        mcp: Mapping[str, Any] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        store: Store | None = None,
        inherits: Inherited | None = None,
        source: str = "python",
    ) -> None:
        self._options = AgentOptions(
            model=model, base_url=base_url, api_mode=api_mode, api_key=api_key, context_window=context_window,
            tools=tuple(tools), toolsets=toolsets if isinstance(toolsets, str) else tuple(toolsets),
            system_prompt=system_prompt, fallbacks=fallbacks, settings=settings, home=home,
            session_id=session_id,
            callbacks=callbacks, clock=clock, budget=budget, auxiliary=auxiliary, memory=memory, mcp=mcp,
            workdir=workdir, store=store, inherits=inherits, source=source,
        )  # fmt: skip
        self._services = services = composed(self._options, Agent.of)
        self.home, self.settings, self.signals = services.home, services.settings, services.signals
        self.session_id = session_id or f"s-{uuid.uuid4().hex[:12]}"
        self._line = TurnLine(self.settings.interrupt.second_message, self.signals)
        self._store, self._primary = services.store, services.backends.runtime()
        self._held = None if inherits is None else inherits.session

    @classmethod
    def of(cls, options: AgentOptions) -> Self:
        """The agent that these options describe. Raises ``ConfigError``."""
        return cls(**vars(options))

    # Turns

    def chat(self, user_message: Content) -> str:
        """One turn; only its text."""
        return self.run_conversation(user_message).final_response or ""

    def run_conversation(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
    ) -> TurnResult:
        """One turn, synchronously; also inside a running event loop. While another turn runs, the setting
        ``interrupt.second_message`` decides; by default ``SessionBusy`` is raised."""
        turn = self.start(user_message, system_message, conversation_history, task_id)
        return LOOP.run(self._line.run(turn, user_message))

    async def arun(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
    ) -> TurnResult:
        """``run_conversation``, asynchronously."""
        if not isinstance(user_message, str):  # an image or a PDF may take seconds
            user_message = await asyncio.to_thread(self._message, user_message)
        turn = self.start(user_message, system_message, conversation_history, task_id)
        return await self._line.run(turn, user_message)

    def start(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
    ) -> Turn:
        """A turn that has not moved yet. ``user_message``: text, or content parts in any form of
        ``fsm_agent.conversation.parts``; an image or a PDF may take seconds. ``conversation_history``
        replaces the session's rows and is never changed; system rows at its beginning join
        ``system_message``.

        Raises ``ConfigError`` for a message that is empty or too long, for a part that cannot be used or
        that the model does not read, and for a history with rows that are none, or with a system row behind
        others.
        """
        content, rows = self._message(user_message), None
        if conversation_history is not None:
            supplied = supplied_history(conversation_history, self._primary)
            rows = history_of(supplied.messages, self._services.backends.runtimes(), self.settings.parts)
            system_message = supplied.with_prompt(system_message)
        session = self._session()
        name_after(self._store, session, content)
        state = self._state(session, content, task_id or str(uuid.uuid4()), rows)
        performer, log = EffectHandler(self._services, session, state.turn_id), self._log(state, session)
        parent = None if (child := self._options.inherits) is None else child.order.parent_turn
        new = NewTurn(
            asked_words(content), KIND.table.name, DIGEST, self.settings.model_dump(mode="json"), parent
        )

        def moved(successor: Session) -> None:
            state.move_to(successor.id, successor.parent)
            state.accounting.share(successor.meter)
            performer.session = successor
            log.followed(successor)

        async def enter() -> Begun:
            begun = await self._store.begin(session, state, log.opened, new, moved)
            state.share(performer.session.wire)
            performer.prompted(*self._prompt(performer.session, system_message))
            return begun

        return self._turn(state, session, performer, log, enter)

    def _message(self, content: Content) -> Any:
        return message_of(content, self._services.backends.runtimes(), self.settings.parts)

    def resume(self, session_or_turn_id: str) -> Turn:
        """An unfinished turn, where it was when its process ended: by its id or its beginning, or by the id,
        beginning or title of its session. Calls of tools that were running then are not repeated unless they
        are pure or idempotent; the model is told. Raises ``ConfigError`` when there is nothing to resume,
        ``SessionBusy`` while another process runs it."""
        info = find_turn(self._store, session_or_turn_id).moved_by(KIND.table.name)
        self._store.refuse_if_run(info)
        position, session = position_of(self._store, info.id), self._store.session(info.session)
        session.release(session.acquire(info.id))  # refused at once, not at the first move
        return self._continued(position, session, lambda: take_over(self._store, position, session))

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None = None) -> Turn:
        """A new turn, in a session of its own, that begins where ``turn_id`` was after ``at`` moves, with the
        changes of ``edit`` (``fsm_agent.sessions.store.rewind.edits.edited`` says which). The old turn stays
        as it is. Raises ``ConfigError``."""
        self.journal.info(turn_id).moved_by(KIND.table.name)
        position = edited(position_of(self._store, turn_id, at), edit or {}, COUNTERS)
        session = self._store.new_session()
        write = forked(self._store, position, session, _turn_id(session), DIGEST)

        async def enter() -> Begun:
            await self._store.written(write)
            return Begun(1)

        return self._continued(position, session, enter)

    def _continued(self, position: Position, session: Session, enter: Callable[[], Awaitable[Begun]]) -> Turn:
        imported = position.turn.imported
        state = continued(position, self.settings)
        remembers = self._services.recall.there and not imported  # a memory is not told what a stranger wrote
        state.setup.belong(attended=self._services.callbacks.has("approval"), has_memory=remembers)
        performer = EffectHandler(self._services, session, state.turn_id, imported=imported)
        log = self._log(state, session, position.recording)

        async def reenter() -> Begun:
            begun = await enter()
            joined(state, session)
            log.opened()  # before: what the agent puts in place of what is stored is a change like others
            performer.prompted(
                *((state.setup.system_prompt, ()) if state.seq else self._prompt(session, None))
            )
            reopened(state, await performer.reopen(state.setup.runtime), position)
            performer.spent_before(state.iterations, state.attempts, spent_below(self._store, state.turn_id))
            return begun

        steps = self.journal.steps(position.turn.id, 1, state.seq) if state.seq else []
        return self._turn(state, session, performer, log, reenter, steps)

    def _log(
        self, state: TurnState, session: Session, recording: ConversationRecording | None = None
    ) -> ConversationLog:
        return ConversationLog(self._store.database, session, state, recording, tell=self._status)

    def _status(self, text: str) -> None:
        self._services.callbacks.emit("status", text)

    def _turn(
        self,
        state: TurnState,
        session: Session,
        performer: EffectHandler,
        log: ConversationLog,
        enter: Callable[[], Awaitable[Begun]],
        steps: Sequence[Step] = (),
    ) -> Turn:
        gate = PausePoint(state, KIND, self.signals, self._store.pause_points)
        runner = Runner(
            state,
            MACHINE,
            STATES,
            gate.through(performer, performer),
            log,
            self._moved(state, performer, log, gate),
            watcher(MACHINE.table, state, self.settings.properties, steps),
        )
        ending = ending_of(
            self._store, state.turn_id, lambda done: self._ended(state, done, session), self.settings.store
        )
        lease = SessionLease(self._store, state.turn_id, log, enter, ending, self._status)
        return Turn(state, runner, session, lease, gate, steps)

    async def acompact(self, focus: str = "") -> dict[str, Any] | None:
        """Make the session shorter now; ``focus`` is what its summary should be about. The figures of the
        compaction, or ``None`` when nothing could be made shorter. What spoke against automatic compactions
        is forgotten."""
        session = self._session()
        holder = _turn_id(session)
        claim = session.acquire(holder)
        try:
            held = await self._store.hold(session, holder)
            state = await self._compacted(held, focus)
        finally:
            self._store.let_go(holder)
            session.release(claim)
        self.session_id = state.session_id
        return state.compaction.compressions[-1] if state.compaction.compressions else None

    async def _compacted(self, held: Session, focus: str) -> TurnState:
        if left := self._store.unfinished(held.id):
            raise SessionBusy(
                f"turn {left[-1][0]} was left unfinished; resume it, or say something new, before compacting"
            )
        state, performer = self._state(held, "", state="Compress"), EffectHandler(self._services, held)
        try:
            opened = await performer(OpenTurn())
            held.guard.forced()
            state.setup.reopen(opened)
            state.load(held.rows)
            state.compaction.begin(Compacted(held.guard.done))
            state.compaction.force(focus)
            await compacted(state, performer)
            await performer(CloseTurn(silences=opened.silences))
            await self._store.save(held)
        except BaseException:
            self._store.refresh(held)
            raise
        return state

    def compact(self, focus: str = "") -> dict[str, Any] | None:
        """``acompact``, synchronously."""
        return LOOP.run(self.acompact(focus))

    async def aundo(self, turns: int = 1, *, files: bool = False) -> Undone:
        """Take back the session's last turns, one that was left unfinished among them: the transcript is what
        it was before, and nothing is deleted. What tools did stays done; with ``files``, those of the working
        directory are put back as the checkpoint from before these turns has them, whoever changed them since.
        Raises ``ConfigError`` when there are not so many, ``SessionBusy`` while a turn is running,
        ``StoreError`` when the files cannot be put back."""
        undone = await undo(self._store, self._session().id, turns)
        self.session_id = undone.session
        if not files:
            return undone
        try:
            return replace(undone, files=await asyncio.to_thread(self._put_back, undone.turns))
        except StoreError as error:
            raise StoreError(f"the turns were taken back, but not their files: {error}") from None

    def _put_back(self, turns: Sequence[str]) -> PutBack | None:
        """Make the files what they were before any of these turns, or their children, changed them; ``None``
        without a checkpoint."""
        with_children, checkpoints = list(turns), self._services.checkpoints
        for turn in with_children:
            with_children += [child.turn_id for child in children_of(self._store, turn)]
        found = checkpoints.of_turn(with_children)
        return None if found is None else checkpoints.put_back(found)

    def undo(self, turns: int = 1, *, files: bool = False) -> Undone:
        """``aundo``, synchronously."""
        return LOOP.run(self.aundo(turns, files=files))

    @property
    def title(self) -> str:
        """What the session is called: the first words of its first message, until it is given another title.
        Empty before its first turn."""
        return self._session().title

    def rename(self, title: str) -> str:
        """Give the session a title; what it is called now. Raises ``ConfigError`` for one that another
        session has, and before the session's first turn."""
        return rename(self._store, self._session().id, title)

    @property
    def journal(self) -> Turns:
        """What the turns of this home did: their moves, requests, snapshots and results."""
        return Turns(self._store.database)

    @property
    def context_used(self) -> float:
        """How full the window of the model is with this session, from 0 on; 0 when the window is not known. A
        host that keeps sessions open calls ``compact`` between turns from
        ``settings.compression.host_threshold`` on."""
        window = self._services.backends.runtime().window
        return self._session().meter.tokens / window if window else 0.0

    def _session(self) -> Session:
        """Held, so that it need not be read again for the next turn."""
        self._held = session = self._store.newest(self.session_id)
        self.session_id = session.id
        session.source = session.source or self._options.source
        return session

    def _state(
        self,
        session: Session,
        content: Any,
        task_id: str = "",
        supplied: tuple[Message, ...] | None = None,
        state: str = MACHINE.table.initial,
    ) -> TurnState:
        return TurnState.of(
            state=state,
            turn_id=_turn_id(session),
            session_id=session.id,
            parent_session_id=session.parent,
            task_id=task_id,
            settings=self.settings,
            user_content=content,
            supplied_history=supplied,
            runtime=self._services.backends.runtime(),
            attended=self._services.callbacks.has("approval"),
            has_memory=self._services.recall.there,
            wire=session.wire,
            meter=session.meter,
        )

    def _ended(self, state: TurnState, steps: list[Step], session: Session) -> TurnResult:
        self.session_id = state.session_id
        result = result_of(state, steps, session.newest())
        if not self._services.agent_tools.handles("delegate_task"):
            return result
        try:
            return result.model_copy(update={"children": children_of(self._store, state.turn_id)})
        except StoreError as error:  # the answer is worth more than the list
            return result.model_copy(
                update={"cleanup_errors": [*result.cleanup_errors, f"the children are not listed: {error}"]}
            )

    def interrupt(self, message: str | None = None) -> None:
        """Stop the running turn, or the next one before its first request. From any thread; idempotent."""
        self.signals.interrupt(message)

    def steer(self, text: str) -> None:
        """Tell the running turn something without stopping it: the model reads it with the next tool
        result."""
        self.signals.steer(text)

    @property
    def background(self) -> Background:
        """The tasks that the model gave to the background: which are at work, and waiting until they have
        ended. Raises ``ConfigError`` for a child, which has none."""
        if self._services.background is None:
            raise ConfigError(
                "a child has no tasks in the background", self.session_id, "the agent that a person talks to"
            )
        return self._services.background

    async def aclose(self) -> None:
        """Stop tasks in the background where they are, to be taken up by the session's next turn; store what
        an external memory was not told yet; close the connections and programs of this agent."""
        if self._services.background is not None:
            await self._services.background.aclose()
        await self._services.programs.end()
        await self._services.recall.aclose()
        await self._services.tools.aclose()
        self._services.agent_tools.close()
        for backend in (*self._services.backends.chain, *self._services.auxiliary):
            if self._options.inherits is None or backend.choice.profile.name != "scripted":
                # a port that was handed in is the parent's
                await backend.port.aclose()

    def close(self) -> None:
        """``aclose``, synchronously."""
        LOOP.run(self.aclose())

    def _prompt(self, session: Session, system_message: str | None) -> tuple[str, tuple[str, ...]]:
        """Of the primary model, whichever answers: a fallback must not change the bytes."""
        sources = Sources(
            home=self.home,
            workdir=self._services.workdir,
            settings=self.settings.prompt,
            identity=self._options.system_prompt,
            tools=(*self._services.tools.lasting_names, *self._services.agent_tools.names),
            provider=self._primary.provider,
            model=self._primary.model,
            window=self._primary.window,
            recall=lambda: recalled(self._services.notes),
        )
        return prompt_of(session.prompts, sources, system_message, self._services.clock.now())

    def _moved(
        self, state: TurnState, performer: EffectHandler, log: ConversationLog, gate: PausePoint
    ) -> Callable[[Step], None]:
        books = RequestBooks(state)

        def tell(step: Step) -> None:
            departed, watched = performer.departed + log.known_replies, gate.watcher is not None
            assert books.balance(step, departed, watched=watched), f"{step.row}: {books}"
            if self._services.callbacks.hears("transition"):
                counters = state.counters()
                self._services.callbacks.emit(
                    "transition", state.turn_id, step.source, step.event, step.dest, counters
                )

        return tell


def _turn_id(session: Session) -> str:
    return f"{session.id}-{uuid.uuid4().hex[:8]}"
