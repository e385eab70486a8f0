"""``Agent``: a model, tools, settings and a session, put together."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from fsm_agent.composition.options import (
    AgentOptions,
    Deps,
    Inherited,
    Other,
    Out,
    sequence_of,
    toolsets_of,
    unknown_argument,
)
from fsm_agent.conversation.handover import AGENT_NAME
from fsm_agent.conversation.parts import AudioPart, FilePart, ImagePart, Part
from fsm_agent.errors import ConfigError, SessionBusy, StoreError, TurnFailed
from fsm_agent.runtime.events import Named, StatusText
from fsm_agent.support.later import Later

# What turns are made of is loaded when the first agent is made: importing this module is cheap.
if TYPE_CHECKING:
    import os

    from typing_extensions import TypeForm, Unpack

    from fsm_agent.composition import agent_parts as engine
    from fsm_agent.composition.effect_handler import EffectHandler
    from fsm_agent.composition.handoffs import Handoff, OptionedAgent
    from fsm_agent.composition.options import AgentArguments, TurnArguments
    from fsm_agent.composition.turn_wiring import TurnState
    from fsm_agent.conversation.compaction import ContextEngine
    from fsm_agent.conversation.effects import ToolSpec
    from fsm_agent.conversation.handover import HandoffStep
    from fsm_agent.conversation.messages import Message
    from fsm_agent.conversation.result import TurnResult
    from fsm_agent.fsm.journal import Step
    from fsm_agent.hooks import Guardrail, Hooks
    from fsm_agent.memory.provider import MemoryProvider
    from fsm_agent.output import OutputType
    from fsm_agent.prompt import Recalled
    from fsm_agent.providers.credentials import ApiKey
    from fsm_agent.runtime.budget import IterationBudget
    from fsm_agent.runtime.ports import Clock, ModelPort
    from fsm_agent.runtime.turn_inbox import TurnInbox
    from fsm_agent.sessions.checkpoints import PutBack
    from fsm_agent.sessions.relay import Relay
    from fsm_agent.sessions.session import Session
    from fsm_agent.sessions.store import Begun, Claim, ConversationLog, ConversationRecording, Store
    from fsm_agent.sessions.store.database import Job
    from fsm_agent.sessions.store.fence import Fence
    from fsm_agent.sessions.store.journal.read import Turns
    from fsm_agent.sessions.store.pending import Pending, PendingItems
    from fsm_agent.sessions.store.rewind.positions import Position
    from fsm_agent.sessions.store.rewind.undo import Undone
    from fsm_agent.sessions.store.speaker import Speaker
    from fsm_agent.sessions.turn import Turn
    from fsm_agent.settings.model import Settings
    from fsm_agent.telemetry import Telemetry
    from fsm_agent.tools import RunContext, Tool
    from fsm_agent.toolsets.agent import Background
else:
    engine = Later("fsm_agent.composition.agent_parts")

Content = (
    str | Part | ImagePart | AudioPart | FilePart | Sequence[str | Part | ImagePart | AudioPart | FilePart]
)
"""What a user can say: text, a content part, or several of them."""


class Agent(Generic[Deps, Out]):
    """An agent: a model, tools, settings, and a session that goes on from turn to turn.

    Args:
        model: ``"<provider>:<model>"``, a ``ModelPort`` (a scripted one for instance), or ``None`` to take
            what is there: ``FSM_AGENT_MODEL``, a key in the environment, a local server, else the offline
            demo.
        base_url: Address of the provider, up to ``/v1``, in the place of its own.
        api_mode: How requests are written: ``"chat_completions"``, ``"codex_responses"`` (the Responses
            API) or ``"anthropic_messages"``; by default what the provider speaks.
        api_key: A string, several, or an object with ``get()`` and ``refresh()``; by default the
            environment's.
        context_window: Tokens that prompt and answer may have together, where it is not known or wrong.
        tools: Functions, decorated with ``tool`` or plain. An agent with ``tools``, ``mcp`` or ``handoffs``
            has those and no others, unless ``toolsets`` names some.
        toolsets: Names of built-in groups (``fsm_agent.toolsets``, ``fsm_agent.toolsets.agent``), ``mcp`` for
            the servers of the config file; ``"default"`` for what an agent has that was given no tools;
            ``[]`` for none.
        system_prompt: Who the agent is, in the place of the built-in words. Without built-in tools it is
            the whole prompt; with them the engine adds rules, directory and date.
        output_type: What its answers must be: a pydantic model, a dataclass, a ``TypedDict``, another type or
            union, a function whose parameters are asked for and whose result is the answer, or a
            ``JsonSchema`` (``fsm_agent.output``); ``None`` for text.
        fallbacks: Models that are tried in this order when the model cannot answer: mappings with the keys
            model (or a port), base_url, api_key, api_mode, context_window. ``None``: the config file's.
        settings: ``Settings``, or a mapping with what differs from them, such as ``{"max_iterations": 20}``.
        home: Folder with the store, notes and config file; by default ``FSM_AGENT_HOME``, else the
            platform's.
        session_id: The session to go on with, or the name of a new one; by default a new one.
        callbacks: A mapping or an object; see ``fsm_agent.runtime.callbacks``.
        clock: Every wait and time limit goes through it.
        budget: Iterations shared with other agents.
        auxiliary: Smaller models for side work: a mapping like those of ``fallbacks``, a list of them, or
            such lists by task (``summary``, ``web``, ``vision``, ``title``). The main model is used when they
            fail.
        memory: An external memory besides the files in the home.
        context_engine: Decides how a conversation that is too long becomes shorter, in the place of the
            built-in engine (``fsm_agent.conversation.compaction``); children have it, too.
        hooks: Code of yours that sees what goes through its turns, and may change or refuse it
            (``fsm_agent.hooks``); children have them, too.
        input_guardrails: Functions that look at a message before it is sent.
        output_guardrails: Functions that look at an answer before it is delivered.
        mcp: MCP servers by name instead of those in ``config.toml``, see ``fsm_agent.toolsets.mcp``.
        workdir: Folder that the tools for files and commands work in; by default the current one.
        store: A store that is open already, in the place of the home's.
        inherits: What a child has of its parent; the engine gives it.
        source: What its new sessions are begun by, in lists and insights.
        name: What other agents, and whoever reads what it did, call it.
        handoffs: Agents that it can hand a conversation to, or a ``Handoff`` for each. A message goes to the
            agent that it is given to; ``speaker()`` is the one that answered last.
        telemetry: Whether its turns, and those of its children and of agents that it hands over to, are told
            to OpenTelemetry, and where (``fsm_agent.telemetry``); by default the setting.
        inbox: Where interrupts and steering come in; the engine gives it.

    Raises:
        ConfigError: For anything that cannot be used, in one line.
    """

    @overload
    def __init__(
        self,
        model: str | ModelPort | None = None,
        *,
        output_type: None = None,
        **more: Unpack[AgentArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: str | ModelPort | None = None,
        *,
        output_type: TypeForm[Out],
        **more: Unpack[AgentArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: str | ModelPort | None = None,
        *,
        output_type: Callable[..., Coroutine[Any, Any, Out]],
        **more: Unpack[AgentArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: str | ModelPort | None = None,
        *,
        output_type: Callable[..., Out],
        **more: Unpack[AgentArguments],
    ) -> None: ...
    def __init__(
        self,
        model: str | ModelPort | None = None,
        *,
        base_url: str | None = None,
        api_mode: str | None = None,
        api_key: ApiKey = None,
        context_window: int | None = None,
        tools: Sequence[Tool | Callable[..., Any]] | None = None,
        toolsets: str | Sequence[str] | None = None,
        system_prompt: str | None = None,
        output_type: Any = None,
        fallbacks: Sequence[Mapping[str, Any]] | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        home: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        callbacks: object | Mapping[str, Callable[..., Any]] | None = None,
        clock: Clock | None = None,
        budget: IterationBudget | None = None,
        auxiliary: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
        memory: MemoryProvider | None = None,
        context_engine: ContextEngine | None = None,
        hooks: Sequence[Hooks] = (),
        input_guardrails: Sequence[Guardrail | Callable[..., Any]] = (),
        output_guardrails: Sequence[Guardrail | Callable[..., Any]] = (),
        mcp: Mapping[str, Any] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        store: Store | None = None,
        inherits: Inherited | None = None,
        source: str = "python",
        name: str = AGENT_NAME,
        handoffs: Sequence[Handoff | OptionedAgent] = (),
        inbox: TurnInbox | None = None,
        telemetry: Telemetry | bool | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise unknown_argument(next(iter(unknown)))
        self._options = AgentOptions(
            model=model, base_url=base_url, api_mode=api_mode, api_key=api_key, context_window=context_window,
            tools=sequence_of("tools", () if tools is None else tools),
            toolsets=toolsets_of(toolsets, has_tools=tools is not None or bool(mcp) or bool(handoffs)),
            system_prompt=system_prompt, output_type=output_type, fallbacks=fallbacks, settings=settings,
            home=home, session_id=session_id, callbacks=callbacks, clock=clock, budget=budget,
            auxiliary=auxiliary, memory=memory, context_engine=context_engine,
            hooks=sequence_of("hooks", hooks), mcp=mcp, workdir=workdir, store=store,
            input_guardrails=sequence_of("input_guardrails", input_guardrails),
            output_guardrails=sequence_of("output_guardrails", output_guardrails),
            inherits=inherits, source=source, name=name, handoffs=handoffs, inbox=inbox,
            telemetry=telemetry,
        )  # fmt: skip
        self._services = services = engine.composed(self._options, Agent.of)
        self.home, self.settings, self.signals = services.home, services.settings, services.signals
        self.session_id = session_id or f"s-{uuid.uuid4().hex[:12]}"
        self._line = engine.TurnLine(self.settings.interrupt.second_message, self.signals)
        self._store, self._primary = services.store, services.backends.runtime()
        self._held = None if inherits is None else inherits.session
        self._others: dict[str, Agent[Any, Any]] = {}
        most = self.settings.max_turns_at_once if inherits is None else None  # a child's parent has a place
        self._door = engine.TurnDoor(
            most, self.signals, services.callbacks, services.clock, self.settings.poll
        )

    @classmethod
    def of(cls, options: AgentOptions) -> Self:
        """The agent that these options describe. Raises ``ConfigError``."""
        return cls(**vars(options))

    # Turns

    def chat(self, user_message: Content, *, deps: Deps | None = None) -> str:
        """Run one turn and return its text, also that of a partial answer or an interrupted one. Raises
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
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
        *,
        ephemeral_prompt: str | None = None,
        deps: Deps | None = None,
    ) -> TurnResult[Out]: ...
    @overload
    def run_conversation(
        self,
        user_message: Content,
        *,
        output_type: TypeForm[Other],
        **more: Unpack[TurnArguments[Deps]],
    ) -> TurnResult[Other]: ...
    @overload
    def run_conversation(
        self,
        user_message: Content,
        *,
        output_type: Callable[..., Coroutine[Any, Any, Other]],
        **more: Unpack[TurnArguments[Deps]],
    ) -> TurnResult[Other]: ...
    @overload
    def run_conversation(
        self,
        user_message: Content,
        *,
        output_type: Callable[..., Other],
        **more: Unpack[TurnArguments[Deps]],
    ) -> TurnResult[Other]: ...
    def run_conversation(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
        *,
        ephemeral_prompt: str | None = None,
        deps: Any = None,
        output_type: Any = None,
    ) -> TurnResult[Any]:
        """One turn, synchronously. Inside a running event loop, such as a notebook's, that loop waits until
        the turn has ended, and a ``RuntimeWarning`` says so: ``arun`` lets it go on. While another turn
        runs, the setting ``interrupt.second_message`` decides; by default ``SessionBusy`` is raised. When the
        turn hands the conversation over, the next one of the other agent follows; the result is the last
        one's. Raises ``TurnSuspended`` for a turn that waits for an answer nobody gives now, see
        ``pending``."""
        engine.warn_if_blocking("run_conversation", "await agent.arun(…)")
        turn = self._started(
            user_message,
            system_message,
            conversation_history,
            task_id,
            ephemeral_prompt,
            deps,
            output_type,
        )
        relay, words = self._relay(turn, deps, output_type), user_message if output_type is None else None
        return engine.LOOP.run(self._line.run(relay, words))

    @overload
    async def arun(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
        *,
        ephemeral_prompt: str | None = None,
        deps: Deps | None = None,
    ) -> TurnResult[Out]: ...
    @overload
    async def arun(
        self,
        user_message: Content,
        *,
        output_type: TypeForm[Other],
        **more: Unpack[TurnArguments[Deps]],
    ) -> TurnResult[Other]: ...
    @overload
    async def arun(
        self,
        user_message: Content,
        *,
        output_type: Callable[..., Coroutine[Any, Any, Other]],
        **more: Unpack[TurnArguments[Deps]],
    ) -> TurnResult[Other]: ...
    @overload
    async def arun(
        self,
        user_message: Content,
        *,
        output_type: Callable[..., Other],
        **more: Unpack[TurnArguments[Deps]],
    ) -> TurnResult[Other]: ...
    async def arun(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
        *,
        ephemeral_prompt: str | None = None,
        deps: Any = None,
        output_type: Any = None,
    ) -> TurnResult[Any]:
        """``run_conversation``, asynchronously."""
        if not isinstance(user_message, str):  # an image or a PDF may take seconds
            user_message = await engine.asyncio.to_thread(self._message, user_message)
        turn = self._started(
            user_message,
            system_message,
            conversation_history,
            task_id,
            ephemeral_prompt,
            deps,
            output_type,
        )
        relay, words = self._relay(turn, deps, output_type), user_message if output_type is None else None
        return await self._line.run(relay, words)

    @overload
    def start(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
        *,
        ephemeral_prompt: str | None = None,
        deps: Deps | None = None,
    ) -> Turn[Out]: ...
    @overload
    def start(
        self,
        user_message: Content,
        *,
        output_type: TypeForm[Other],
        **more: Unpack[TurnArguments[Deps]],
    ) -> Turn[Other]: ...
    @overload
    def start(
        self,
        user_message: Content,
        *,
        output_type: Callable[..., Coroutine[Any, Any, Other]],
        **more: Unpack[TurnArguments[Deps]],
    ) -> Turn[Other]: ...
    @overload
    def start(
        self,
        user_message: Content,
        *,
        output_type: Callable[..., Other],
        **more: Unpack[TurnArguments[Deps]],
    ) -> Turn[Other]: ...
    def start(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
        *,
        ephemeral_prompt: str | None = None,
        deps: Any = None,
        output_type: Any = None,
    ) -> Turn[Any]:
        """A turn that has not moved yet. ``user_message``: text, or
        content parts in any form of ``fsm_agent.conversation.parts``; an image or a PDF may take seconds.
        ``conversation_history`` replaces the session's rows and is never changed; system rows at its
        beginning join ``system_message``. ``ephemeral_prompt``: what stands behind the system prompt in this
        turn alone; it is in no transcript, in no later turn, and behind what a provider is told to cache.
        ``deps``: what tools get in their ``RunContext``; it is never stored. ``output_type``: of this
        answer, in the place of the agent's, whichever agent gives it; ``str`` for text.

        Raises ``ConfigError`` for tools that need ``deps`` when there are none, for a message that is empty
        or too long, for a part that cannot be used or that the model does not read, for a history with rows
        that are none, or with a system row behind others, and for an ``ephemeral_prompt`` that is no text.
        """
        return self._started(
            user_message,
            system_message,
            conversation_history,
            task_id,
            ephemeral_prompt,
            deps,
            output_type,
        )

    def _started(
        self,
        user_message: Content,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
        ephemeral_prompt: str | None = None,
        deps: Any = None,
        output_type: Any = None,
        turn_id: str = "",
        handoffs: tuple[HandoffStep, ...] = (),
        begins: Job | None = None,
        trace: str = "",
    ) -> Turn[Any]:
        """``handoffs``: the way of the conversation to this agent since the user spoke; then ``turn_id`` is
        known. ``begins``: done in the transaction that begins the turn. ``trace``: the ``traceparent`` of
        what it was queued in."""
        content, rows = self._message(user_message), None
        if not isinstance(ephemeral_prompt, str | None):
            raise ConfigError("ephemeral_prompt has the wrong type", ephemeral_prompt, "a text, or None")
        session = self._session()
        if conversation_history is not None:
            supplied = engine.supplied_history(conversation_history, self._primary, session.rows)
            rows = engine.history_of(
                supplied.messages, self._services.backends.runtimes(), self.settings.parts
            )
            system_message = supplied.with_prompt(system_message)
        engine.name_after(self._store, session, content)
        state = self._state(
            session, content, task_id or str(uuid.uuid4()), rows, ephemeral_prompt or "",
            turn_id=turn_id, handoffs=handoffs,
        )  # fmt: skip
        state.setup.traced(str(trace))
        output = self._output_type(output_type)
        log = self._log(state, session)
        performer = self._performer(session, state, log.fence, deps, output)
        parent = None if (child := self._options.inherits) is None else child.order.parent_turn
        new = engine.NewTurn(
            engine.asked_words(content),
            engine.KIND.table.name,
            engine.DIGEST,
            self.settings.model_dump(mode="json"),
            parent,
            begins,
        )

        def moved(successor: Session) -> None:
            state.move_to(successor.id, successor.parent)
            state.accounting.share(successor.meter)
            performer.session = successor
            log.followed(successor)

        log.fence.handed_out = begins is not None

        async def enter() -> Begun:
            begun = await self._store.begin(session, state, log.opened, new, moved)
            state.share(performer.session.wire)
            performer.prompted(*await self._prompt(performer.session, system_message))
            performer.began(content)
            return begun

        return self._turn(state, session, performer, log, enter)

    def begin_queued(
        self, turn_id: str, request: Mapping[str, Any], begins: Job, *, deps: Deps | None = None
    ) -> Turn[Out]:
        """The turn of a message that was queued under this id; the agent that has the conversation answers.
        ``request`` is what ``start`` is given; ``begins`` is done in the transaction that begins the turn,
        and raises what keeps it from that. Raises ``ConfigError`` as ``start`` does."""
        said = {name: value for name, value in request.items() if name in engine.ASKED}
        return self.speaker()._started(**said, deps=deps, turn_id=turn_id, begins=begins)

    def _output_type(self, given: Any) -> OutputType[Any] | None:
        own = self._services.output
        return own if given is None else engine.output_type_of(given, self.settings)

    def _message(self, content: Content) -> Any:
        services = self._services
        asks = services.agent_tools.handles("ask_image") and services.child_factory.has_models("vision")
        return engine.message_of(content, services.backends.runtimes(), self.settings.parts, asks_images=asks)

    def resume(
        self,
        session_or_turn_id: str,
        *,
        deps: Deps | None = None,
        output_type: Any = None,
        claim: Claim | None = None,
    ) -> Turn[Out]:
        """An unfinished turn, where it was when its process ended: by its id or its beginning, or by the id,
        beginning or title of its session. Calls of tools that were running then are not repeated unless they
        are pure or idempotent; the model is told. A suspended turn goes on when what it waited for is there;
        else whoever is present is asked, or it is suspended again. Of a session whose last turn handed the
        conversation over: the turn of the other agent, if it was not begun. ``deps``: as of ``start``, for
        what is left of the turn. ``output_type``: as of ``start``, which has to be given again; without it,
        and where the agent's is another, the answer is plain data by the schema that is stored. ``claim``:
        what ``Store.claim`` gave for the turn; nobody is asked then whether its owner lives. Raises
        ``ConfigError`` when there is nothing to resume, ``SessionBusy`` while another process runs it."""
        if not self._options.handoffs:
            return self._resumed(session_or_turn_id, deps, output_type, claim)
        left = engine.speaker_after(self.journal, engine.any_turn(self._store, session_or_turn_id))
        if left.handoffs and left == engine.speaker_of(self._store, left.turn.session):
            return self._taken_over(left.turn.session, left.handoffs, left.task_id, deps, output_type)
        return self._reached(left)._resumed(session_or_turn_id, deps, output_type, claim)

    def _resumed(
        self, session_or_turn_id: str, deps: Any, output_type: Any, claim: Claim | None
    ) -> Turn[Any]:
        info = engine.find_turn(self._store, session_or_turn_id).moved_by(engine.KIND.table.name)
        session = self._store.resumable(info, claim)
        position = engine.position_of(self._store, info.id)
        session.release(session.acquire(info.id))  # refused at once, not at the first move
        enter = partial(engine.take_over, self._store, position, session, claim)
        return self._continued(position, session, deps, enter, output_type)

    def pending(self) -> list[Pending]:
        """What the suspended turns of this home wait for, oldest first: questions, approvals, results that
        come later, times."""
        return self._items.open()

    def answer(self, pending_id: str, value: Any = None, *, pattern: str = "", by: str = "") -> Pending:
        """Answer what waits under this id, whichever process asked; ``resume`` its ``turn`` then. ``value``:
        for an approval "once", "session", "always", "deny" or "never", where the longer ones hold for
        ``pattern``; for a question words, or the number of a choice; for a result whatever the tool might
        have returned; for a timer nothing, or the result of the call. ``by``: who answers, by default the
        user of this machine. Raises ``ConfigError`` for what is no answer, for one that nobody waits for any
        more, and for a second one."""
        return engine.answer(self._items, pending_id, value, pattern=pattern, by=by)

    @property
    def _items(self) -> PendingItems:
        return engine.PendingItems(lambda: self._store.database, self._services.clock.now)

    def fork(
        self,
        turn_id: str,
        at: int,
        edit: Mapping[str, Any] | None = None,
        *,
        deps: Deps | None = None,
        output_type: Any = None,
    ) -> Turn[Out]:
        """A new turn, in a session of its own, that begins where ``turn_id`` was after ``at`` moves, with the
        changes of ``edit`` (``fsm_agent.sessions.store.rewind.edits.edited`` says which). The old turn stays
        as it is. ``deps``, ``output_type``: as of ``resume``. Raises ``ConfigError``."""
        self.journal.info(turn_id).moved_by(engine.KIND.table.name)
        position = engine.edited(engine.position_of(self._store, turn_id, at), edit or {}, engine.COUNTERS)
        session = self._store.new_session()
        write = engine.forked(self._store, position, session, _turn_id(session), engine.DIGEST)

        async def enter(fence: Fence) -> Begun:
            await self._store.written(write)
            return engine.Begun()

        return self._continued(position, session, deps, enter, output_type)

    def _continued(
        self,
        position: Position,
        session: Session,
        deps: Any,
        enter: Callable[[Fence], Awaitable[Begun]],
        output_type: Any = None,
    ) -> Turn[Any]:
        imported = position.turn.imported
        state = engine.continued(position, self.settings)
        remembers = self._services.recall.there and not imported  # a memory is not told what a stranger wrote
        state.setup.belong(attended=self._services.callbacks.has("approval"), has_memory=remembers)
        own = self._services.output
        output = (
            self._output_type(output_type)
            if not state.seq
            else engine.output_type_again(state.setup.output, output_type, own, self.settings)
        )
        log = self._log(state, session, position.recording)
        performer = self._performer(session, state, log.fence, deps, output, imported=imported)
        performer.cut_off = position.recording.cut_off()

        async def reenter() -> Begun:
            begun = await enter(log.fence)
            engine.joined(state, session)
            log.opened()  # before: what the agent puts in place of what is stored is a change like others
            performer.prompted(
                *((state.setup.system_prompt, ()) if state.seq else await self._prompt(session, None))
            )
            engine.reopened(state, await performer.reopen(state.setup.runtime), position)
            performer.spent_before(
                state.iterations, state.attempts, engine.spent_below(self._store, state.turn_id)
            )
            performer.began(state.user_content)
            return begun

        steps = self.journal.steps(position.turn.id, 1, state.seq) if state.seq else []
        return self._turn(state, session, performer, log, reenter, steps)

    def _performer(
        self,
        session: Session,
        state: TurnState,
        fence: Fence,
        deps: Any,
        output: OutputType[Any] | None,
        *,
        imported: bool = False,
    ) -> EffectHandler:
        self._services.tools.refuse_without(deps)
        if output is not None:
            output.refuse_without(deps)

        def scene() -> RunContext[Any]:
            most = state.limits.get("iterations")
            left = None if most is None else max(0, most - state.iterations)
            names = tuple(tool.name for tool in state.setup.tools)
            return engine.RunContext(
                deps, state.session_id, state.turn_id, state.task_id, iterations_left=left, tools=names
            )

        return engine.EffectHandler(
            self._services,
            session,
            fence,
            imported=imported,
            scene=scene,
            handoffs=len(state.setup.handoffs),
            output=output,
        )

    def _trace_before(self, state: TurnState) -> str:
        """The trace of the turn that handed the conversation over to this one; empty without one."""
        if not state.setup.handoffs:
            return ""
        return str(self.journal.snapshot(state.setup.handoffs[-1].turn_id).get("trace") or "")

    def _log(
        self, state: TurnState, session: Session, recording: ConversationRecording | None = None
    ) -> ConversationLog:
        return engine.ConversationLog(self._store.database, session, state, recording, tell=self._status)

    def _status(self, text: str) -> None:
        self._services.callbacks.publish(StatusText(text))

    def _turn(
        self,
        state: TurnState,
        session: Session,
        performer: EffectHandler,
        log: ConversationLog,
        enter: Callable[[], Awaitable[Begun]],
        steps: Sequence[Step] = (),
    ) -> Turn[Any]:
        gate = engine.PausePoint(state, engine.KIND, self.signals, self._store.pause_points)
        performer.follow(state, gate.stream)
        tracing, before = self._services.tracing, partial(self._trace_before, state)
        outer = () if tracing is None else (tracing.turn(state, before).at(gate),)
        runner = engine.Runner(
            state,
            engine.MACHINE,
            engine.STATES,
            performer.pipeline(state, gate, *outer),
            log,
            engine.watcher(engine.MACHINE.table, state, self.settings.properties, steps),
        )
        ending = engine.ending_of(
            self._store,
            state.turn_id,
            lambda done: self._ended(state, done, session, performer),
            self.settings.store,
        )
        ending = replace(ending, suspended=partial(self._suspended, state.turn_id), lost=performer.lost)
        lease = engine.SessionLease(self._store, state.turn_id, log, enter, ending, self._status)
        return engine.Turn(state, runner, session, lease, gate, self._door, steps)

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
        state, performer = (
            self._state(held, "", state="Compress"),
            engine.EffectHandler(self._services, held),
        )
        try:
            perform = performer.pipeline(state)
            opened = await perform(engine.OpenTurn())
            held.guard.forced()
            state.setup.reopen(opened)
            state.load(held.rows)
            state.compaction.begin(engine.Compacted(held.guard.done))
            state.compaction.force(focus)
            tracing = self._services.tracing
            with engine.nullcontext() if tracing is None else tracing.compacting(state) as layer:
                await engine.compacted(state, performer.pipeline(state, None, *((layer,) if layer else ())))
            await perform(engine.CloseTurn(silences=opened.silences))
            await self._store.save(held)
        except BaseException:
            self._store.refresh(held)
            raise
        return state

    def compact(self, focus: str = "") -> dict[str, Any] | None:
        """``acompact``, synchronously."""
        return engine.LOOP.run(self.acompact(focus))

    async def aundo(self, turns: int = 1, *, files: bool = False) -> Undone:
        """Take back the session's last turns, one that was left unfinished among them: the transcript is what
        it was before, and nothing is deleted. What tools did stays done; with ``files``, those of the working
        directory are put back as the checkpoint from before these turns has them, whoever changed them since.
        Raises ``ConfigError`` when there are not so many, ``SessionBusy`` while a turn is running,
        ``StoreError`` when the files cannot be put back."""
        undone = await engine.undo(self._store, self._session().id, turns)
        self.session_id = undone.session
        if not files:
            return undone
        try:
            return replace(undone, files=await engine.asyncio.to_thread(self._put_back, undone.turns))
        except StoreError as error:
            raise StoreError(f"the turns were taken back, but not their files: {error}") from None

    def _put_back(self, turns: Sequence[str]) -> PutBack | None:
        """Make the files what they were before any of these turns, or their children, changed them; ``None``
        without a checkpoint."""
        with_children, checkpoints = list(turns), self._services.checkpoints
        for turn in with_children:
            with_children += [child.turn_id for child in engine.children_of(self._store, turn)]
        found = checkpoints.of_turn(with_children)
        return None if found is None else checkpoints.put_back(found)

    def undo(self, turns: int = 1, *, files: bool = False) -> Undone:
        """``aundo``, synchronously."""
        return engine.LOOP.run(self.aundo(turns, files=files))

    @property
    def title(self) -> str:
        """What the session is called: the first words of its first message, until it is given another title.
        Empty before its first turn."""
        return self._session().title

    def rename(self, title: str) -> str:
        """Give the session a title; what it is called now. Raises ``ConfigError`` for one that another
        session has, and before the session's first turn."""
        return engine.rename(self._store, self._session().id, title)

    @property
    def journal(self) -> Turns:
        """What the turns of this home did: their moves, requests, snapshots and results."""
        return engine.Turns(self._store.database)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What is known of the tools that the model may call."""
        return self._services.tools.specs

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
        ephemeral: str = "",
        state: str = "",
        turn_id: str = "",
        handoffs: tuple[HandoffStep, ...] = (),
    ) -> TurnState:
        return engine.TurnState.of(
            state=state or engine.MACHINE.table.initial,
            turn_id=turn_id or _turn_id(session),
            agent=self._options.name,
            handoffs=handoffs,
            session_id=session.id,
            parent_session_id=session.parent,
            task_id=task_id,
            settings=self.settings,
            user_content=content,
            supplied_history=supplied,
            ephemeral_prompt=ephemeral,
            runtime=self._services.backends.runtime(),
            attended=self._services.callbacks.has("approval"),
            has_memory=self._services.recall.there,
            wire=session.wire,
            meter=session.meter,
        )

    async def _ended(
        self, state: TurnState, steps: list[Step], session: Session, performer: EffectHandler
    ) -> TurnResult[Any]:
        self.session_id = state.session_id
        result = await engine.result_of(state, steps, session.newest(), performer.answers)
        if not self._services.agent_tools.begin_turns:
            return result
        try:
            return result.model_copy(update={"children": engine.children_of(self._store, state.turn_id)})
        except StoreError as error:  # the answer is worth more than the list
            return result.model_copy(
                update={"cleanup_errors": [*result.cleanup_errors, f"the children are not listed: {error}"]}
            )

    def as_tool(
        self, name: str | None = None, description: str = "", max_iterations: int | None = None
    ) -> Tool:
        """This agent as a tool for other agents, to be given in their ``tools``. A call is a child turn with
        a history of its own, under this agent's model, prompt, tools and settings, in the store of the agent
        that calls and within the limits of its tree (``settings.delegation``); the answer is the result.
        ``name``: of the tool, and of the agent in those turns; by default its own. ``description``: when to
        ask it, for the model. ``max_iterations`` of one call; by default the setting. Raises
        ``ConfigError``."""
        known = replace(self.options, name=self._options.name if name is None else name)
        return engine.agent_tool(known, self.settings, description, max_iterations)

    def _suspended(self, turn_id: str, waits: Sequence[Pending]) -> None:
        about = {"turn_id": turn_id, "pending": [one.to_dict() for one in waits]}
        self._services.callbacks.publish(Named("turn:suspended", about))

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
        an external memory was not told yet; close the connections and programs of this agent. A turn that
        waits for its place (``max_turns_at_once``) is sent away with a ``ConfigError``."""
        self._door.close()
        if self._services.background is not None:
            await self._services.background.aclose()
        for other in self._others.values():
            await other.aclose()
        await self._services.programs.end()
        await self._services.recall.aclose()
        await self._services.tools.aclose()
        self._services.agent_tools.close()
        for backend in (*self._services.backends.chain, *self._services.auxiliary):
            borrowed = self._options.inherits is not None or self._options.inbox is not None
            if not borrowed or backend.choice.profile.name != "scripted":
                # a port that was handed in is the parent's
                await backend.port.aclose()

    def close(self) -> None:
        """``aclose``, synchronously."""
        engine.LOOP.run(self.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # Conversations that go from agent to agent

    @property
    def options(self) -> AgentOptions:
        """What it was made with; where no model was named, with the one that was found."""
        return engine.named(self._options, self._services.backends)

    def _relay(self, turn: Turn[Any], deps: Any, output_type: Any) -> Relay:
        return engine.Relay(turn, partial(self._following, deps=deps, output_type=output_type))

    def following(self, result: TurnResult, *, deps: Deps | None = None) -> Turn[Any] | None:
        """The turn of the agent that the turn with this result handed the conversation over to; ``None`` when
        it did not. ``deps``: as of ``start``."""
        return self._following(result, deps, None)

    def _following(self, result: TurnResult, deps: Any, output_type: Any) -> Turn[Any] | None:
        self.session_id = result.session_id
        if result.turn_exit_reason != "handed_over":
            return None
        way = tuple(result.handoffs)
        return self._taken_over(result.session_id, way, result.task_id, deps, output_type)

    def _taken_over(
        self,
        session_id: str,
        handoffs: tuple[HandoffStep, ...],
        task_id: str,
        deps: Any,
        output_type: Any,
    ) -> Turn[Any]:
        """The turn of the agent that a conversation was handed over to. Raises ``ConfigError`` when this
        agent knows none of that name."""
        last, session = handoffs[-1], self._store.newest(session_id)
        handoff = engine.found_handoff(self.options, last)
        rows = handoff.filtered([row.to_dict() for row in session.rows])
        other, turn_id = self._other(handoff), engine.next_turn_id(session.id, last.turn_id)
        other.session_id = session.id
        self._status(f"{last.agent} hands the conversation over to {last.to}")
        return other._started(last.message, None, rows, task_id, None, deps, output_type, turn_id, handoffs)

    def speaker(self) -> Agent[Any, Any]:
        """The agent that has the conversation: the one that ran its last turn, or that it was handed to; this
        one, if it knows no other of that name. Its turns are in the same session."""
        left = engine.speaker_of(self._store, self.session_id)
        return self if left is None else self._reached(left)

    def _reached(self, left: Speaker) -> Agent[Any, Any]:
        """The agent of this name; this one when it knows no other."""
        if left.agent == self._options.name or not self._options.handoffs:
            return self
        try:
            handoff = engine.found_handoff(self.options, engine.HandoffStep("", left.agent, "", ""))
        except ConfigError as error:
            self._status(f"{error}; {self._options.name} goes on")
            return self
        other = self._other(handoff)
        other.session_id = self.session_id
        return other

    def _other(self, handoff: Handoff) -> Agent[Any, Any]:
        """The agent of a handoff, in the store and for the people of this one."""
        if handoff.agent is self:
            return self
        if (other := self._others.get(handoff.name)) is None:
            own, mine, limits = handoff.agent.options, self._options, handoff.agent.settings.delegation
            most = self.settings.delegation.max_handoffs
            above = {
                "delegation": limits.model_copy(update={"max_handoffs": most}),
                "limits": handoff.agent.settings.limits.within(self.settings.limits),
            }
            other = self._others[handoff.name] = Agent.of(
                replace(
                    own,
                    name=handoff.name,
                    settings=handoff.agent.settings.model_copy(update=above),
                    home=self.home,
                    store=self._store,
                    clock=self._services.clock,
                    callbacks=mine.callbacks if own.callbacks is None else own.callbacks,
                    workdir=self._services.workdir if own.workdir is None else own.workdir,
                    source=mine.source,
                    inbox=self.signals,
                    telemetry=own.telemetry if own.telemetry is not None else self._services.telemetry,
                )
            )
        return other

    async def _prompt(self, session: Session, system_message: str | None) -> tuple[str, tuple[str, ...]]:
        """Of the primary model, whichever answers: a fallback must not change the bytes."""

        async def recall() -> Recalled:
            notes = self._services.notes if self._options.has_built_in_tools else None
            return engine.recalled(notes, *await self._services.recall.prompt_block(session.id))

        sources = engine.Sources(
            home=self.home,
            workdir=self._services.workdir,
            settings=self.settings.prompt,
            identity=self._options.system_prompt,
            built_in=self._options.has_built_in_tools,
            tools=(*self._services.tools.lasting_names, *self._services.agent_tools.names),
            model=self._primary.model,
            window=self._primary.window,
            speaker=self._options.name if self._options.inbox else "",
            recall=recall,
        )
        return await engine.prompt_of(session.prompts, sources, system_message, self._services.clock.now())


def _turn_id(session: Session) -> str:
    return f"{session.id}-{uuid.uuid4().hex[:8]}"
