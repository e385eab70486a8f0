"""``AgentTurns``: turns of an agent from a message, an id, or a position.

``DurableTurns`` starts, resumes and forks turns of any table; this module adds what a conversation needs: the
session's transcript, the system prompt, the effect handler, the result.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fsm_agent.composition.effect_handler import EffectHandler
from fsm_agent.composition.services import Services
from fsm_agent.composition.turn_wiring import (
    KIND,
    MACHINE,
    TurnState,
    compact_history,
    edit_turn,
    ending_of,
    join_session,
    reopen_turn,
    restore_turn,
    result_of,
    share_wire,
)
from fsm_agent.conversation.effects import AskExtension, CloseTurn, Compacted, OpenTurn, Runtime
from fsm_agent.conversation.history import read_history
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import (
    PDF,
    Part,
    data_of,
    image_of,
    kind_of,
    name_part,
    parts_of,
    size_of,
    text_of_file,
    text_only,
)
from fsm_agent.conversation.result import HandoffStep, TurnResult
from fsm_agent.conversation.wire.form import View, obstacle
from fsm_agent.errors import ConfigError, SessionBusy, StoreError, expect
from fsm_agent.extension import Extension, close_all, prompts_in
from fsm_agent.features.built_in import answers_of, limit_features, output_type_again, output_type_of
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.memory import recall_files
from fsm_agent.options import AgentOptions, has_built_in_tools, refuse_other_limits
from fsm_agent.prompt import Recalled, Sources, prompt_of
from fsm_agent.runtime.events import Named, StatusText
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Begun, Claim, NewTurn
from fsm_agent.sessions.store.database import Job
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal.conversation_journal import ConversationLog, ConversationRecording
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.sessions.store.rewind import Position
from fsm_agent.sessions.store.rows import first_user_words
from fsm_agent.sessions.store.stored_sessions import name_after
from fsm_agent.sessions.turn import DurableTurn, DurableTurns, Enter, EnterBehind, new_turn_id
from fsm_agent.sessions.turn_limiter import TurnLimiter
from fsm_agent.settings import Limits, PartSettings
from fsm_agent.support.installation import install_command
from fsm_agent.support.media import ImageBounds, UnusableMedia, fit_image, text_of_pdf
from fsm_agent.support.redaction import format_traceback
from fsm_agent.tools import RunContext
from fsm_agent.toolsets.agent.background import budget_below, children_of

if TYPE_CHECKING:
    from fsm_agent.output import OutputType
    from fsm_agent.sessions.store.edits import Undone

# ----------------------------------------------------------------------------------------------------
# Checks a message's parts before its turn: each is made to fit if possible, and otherwise refused in one
# line. A model of the chain that supports less than the first gets a text or a name instead.


MAX_MESSAGE = 8_000_000
"""Maximum characters of text in one user message; more is refused, not cut."""
EXTRAS = {"Pillow is not installed": "images", "pypdf is not installed": "pdf"}


def message_of(
    content: Any, chain: Sequence[Runtime], settings: PartSettings, *, asks_images: bool = False
) -> Any:
    """Convert a user's message to the content of a turn. ``chain``: models, the current one first.
    ``asks_images``: the turn can have another model describe images. May take seconds. Raises ``ConfigError``
    for an empty or too long message, and for a part that is unusable or that the model cannot read: the line
    names both."""
    read = read_parts(content)
    return read if isinstance(read, str) else [_usable(part, chain, settings, asks_images) for part in read]


def read_parts(content: Any) -> Any:
    """Return a user's message as text or content parts. Raises ``ConfigError`` for an empty or too long one,
    and for one of another type."""
    if isinstance(content, Sequence | str) and not content:
        raise ConfigError("the message is empty", content, "some text, or a content part")
    read = parts_of(content)
    if read is None:
        raise ConfigError("the message has the wrong type", None, "text, or a list of content parts")
    length = len(text_only(read))
    if isinstance(read, str) and not read.strip():
        raise ConfigError("the message is empty", read, "some text")
    if length > MAX_MESSAGE:
        raise ConfigError("the message is too long", f"{length:,} characters", f"up to {MAX_MESSAGE:,}")
    return read


def history_of(
    rows: Iterable[Message], chain: Sequence[Runtime], settings: PartSettings
) -> tuple[Message, ...]:
    """Return the rows of a history with parts made to fit where possible. The model gets the names of parts
    that it cannot read, because a history must not end a conversation."""
    return tuple(_fitting(row, chain, settings) for row in rows)


def _fitting(row: Message, chain: Sequence[Runtime], settings: PartSettings) -> Message:
    if isinstance(row.content, str | None) or not any(map(kind_of, row.content)):
        return row
    content: list[Part] = []
    for part in row.content:
        try:
            content.append(_convert_part(part, chain, settings)[0])
        except UnusableMedia:
            content.append(part)
    return replace(row, content=content)


def _usable(part: Part, chain: Sequence[Runtime], settings: PartSettings, asks_images: bool) -> Part:
    if kind_of(part) is None:
        return part
    size = size_of(part)
    if size > settings.max_bytes:
        raise ConfigError(
            f"{name_part(part)} is too large",
            f"{size:,} bytes",
            f"up to {settings.max_bytes:,} (parts.max_bytes)",
        )
    model = f"{chain[0].provider}:{chain[0].model}"
    try:
        made, problem = _convert_part(part, chain, settings)
    except UnusableMedia as error:
        raise ConfigError(
            f"{name_part(part)} cannot be made to fit {model}",
            str(error),
            _remedy(str(error), "a smaller image, as PNG or JPEG"),
        ) from None
    if asks_images and kind_of(part) == "image":
        return made
    if (why := obstacle(made, View.of(chain[0], frozenset()))) and not text_of_file(made):
        kind = kind_of(part)
        what = f"{name_part(part)} cannot be sent: {model} {why}"
        given = f"its text cannot be sent instead: {problem}" if problem else None
        raise ConfigError(
            what,
            given,
            _remedy(problem, f'a model that takes it, or parts.assume=["{kind}"] if this one does'),
        )
    return made


def _remedy(problem: str, otherwise: str) -> str:
    extra = EXTRAS.get(problem)
    return f"{install_command(extra)}, or {otherwise}" if extra else otherwise


def _convert_part(part: Part, chain: Sequence[Runtime], settings: PartSettings) -> tuple[Part, str]:
    """Return (the fitted part, why a PDF has no text although a model of the chain needs it). Raises
    ``UnusableMedia`` for an image that does not fit."""
    media_type, data = data_of(part)
    if kind_of(part) == "image" and data:
        raw = base64.b64decode(data)
        image, found = fit_image(raw, media_type, ImageBounds(settings.image_bytes, settings.image_side))
        return (part if image is raw else image_of(part, found, image)), ""
    needs_text = any(obstacle(part, View.of(runtime, frozenset())) for runtime in chain)
    if media_type == PDF and needs_text and not text_of_file(part):
        try:
            return {**part, "text": text_of_pdf(base64.b64decode(data), settings.pdf_chars)}, ""
        except UnusableMedia as error:
            return part, str(error)
    return part, ""


Turn = DurableTurn[TurnResult[Any]]


class AgentTurns:
    """The turns of one agent. ``session_id``: the session of its next turn. ``log_class``: the class of their
    logs."""

    log_class = ConversationLog

    def __init__(self, options: AgentOptions, services: Services) -> None:
        self.options, self.services = options, services
        self.settings, self.store = services.settings, services.store
        child = options["inherits"]
        self.session_id = options["session_id"] or f"s-{uuid.uuid4().hex[:12]}"
        self.limiter = TurnLimiter(
            self.settings.max_turns_at_once if child is None else None,  # a child uses its parent's slot
            services.signals,
            services.callbacks,
            services.clock,
            self.settings.poll,
        )
        self._durable: DurableTurns[TurnResult[Any]] = DurableTurns(
            KIND,
            MACHINE,
            self.store,
            self.settings.properties,
            self.tell,
            self.limiter,
            ConversationRecording.of,
        )
        self._primary = services.backends.runtime()

    @property
    def journal(self) -> Turns:
        """The turns of this home. The first access opens the store."""
        return self._durable.journal

    def tell(self, text: str) -> None:
        """Show a line to people."""
        self.services.callbacks.publish(StatusText(text))

    def session(self) -> Session:
        """Return the session of the next turn, in its stored state."""
        session = self.store.newest(self.session_id)
        self.session_id, child = session.id, self.options["inherits"]
        if child is not None and not session.revision:
            session.kind, session.parent = "child", child.order.parent_session
        session.source = session.source or self.options["source"]
        return session

    async def read_message(self, content: Any) -> Any:
        """``message``, in a thread where it may take seconds."""
        return content if isinstance(content, str) else await asyncio.to_thread(self.message, content)

    def message(self, content: Any) -> Any:
        """Convert a user's message for a turn; an image or a PDF may take seconds. Raises
        ``ConfigError``."""
        services = self.services
        asks = services.agent_tools.handles("ask_image") and services.child_factory.has_models("vision")
        return message_of(content, services.backends.runtimes(), self.settings.parts, asks_images=asks)

    # The three ways to a turn

    def start(
        self,
        user_message: Any,
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
        *,
        ephemeral_prompt: str | None = None,
        deps: Any = None,
        output_type: Any = None,
        limits: Limits | None = None,
        turn_id: str = "",
        handoffs: tuple[HandoffStep, ...] = (),
        begins: Job | None = None,
        trace: str = "",
    ) -> Turn:
        """``Agent.start``. ``handoffs``: the handoffs to this agent since the user's message; ``turn_id`` is
        then given. ``begins``: a job in the transaction that begins the turn. ``trace``: the ``traceparent``
        under which the message was queued."""
        texts = {"system_message": system_message, "task_id": task_id, "ephemeral_prompt": ephemeral_prompt}
        self.refuse(user_message, limits=limits, **texts)
        content, rows = self.message(user_message), None
        settings = self.settings
        if limits is not None:
            settings = settings.model_copy(update={"limits": settings.limits.for_turn(limits)})
        session = self.session()
        if conversation_history is not None:
            supplied = read_history(conversation_history, self._primary, session.rows)
            rows = history_of(supplied.messages, self.services.backends.runtimes(), self.settings.parts)
            system_message = supplied.with_prompt(system_message)
        name_after(self.store, session, content)
        state = self._state(
            session,
            content,
            task_id=task_id or str(uuid.uuid4()),
            supplied_history=rows,
            ephemeral_prompt=ephemeral_prompt or "",
            turn_id=turn_id or new_turn_id(session),
            handoffs=handoffs,
        )
        state.setup.set_trace(str(trace))
        log = self._log(state, session)
        log.fence.handed_out = begins is not None
        output = self._output_type(output_type)
        features = () if limits is None else limit_features(self.services.features, self.services, settings)
        performer = self._performer(session, state, log.fence, deps, output, features=features)
        child = self.options["inherits"]
        new = NewTurn(
            first_user_words(content),
            KIND.table.name,
            KIND.table.digest,
            settings.model_dump(mode="json"),
            None if child is None else child.order.parent_turn,
            begins,
        )

        def moved(successor: Session) -> None:
            state.move_to(successor.id, successor.parent)

        async def enter() -> Begun:
            begun = await self.store.begin(session, state, log.open, new, moved)
            share_wire(state, performer.session)
            performer.set_prompt(*await self._prompt(performer.session, system_message))
            performer.began(content)
            return begun

        return self._turn(state, performer, log, enter)

    def refuse(
        self, user_message: Any, *, limits: Limits | None = None, deps: Any = None, **arguments: Any
    ) -> None:
        """Raise ``ConfigError`` for arguments of ``start`` that can be judged at once."""
        read_parts(user_message)
        for name in ("system_message", "task_id", "ephemeral_prompt"):
            expect(name, arguments.get(name), (str, type(None)), "a text, or None")
        refuse_other_limits(limits)

    def resume(self, session_or_turn_id: str, deps: Any, output_type: Any, claim: Claim | None) -> Turn:
        """``Agent.resume``, of this agent's own turns."""
        return self._durable.resume(
            session_or_turn_id, claim, partial(self._continue_turn, deps=deps, output_type=output_type)
        )

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any], deps: Any, output_type: Any) -> Turn:
        """``Agent.fork``."""
        return self._durable.fork(
            turn_id,
            at,
            partial(edit_turn, edit=edit),
            partial(self._continue_turn, deps=deps, output_type=output_type),
        )

    def _continue_turn(
        self, position: Position, session: Session, enter: EnterBehind, *, deps: Any, output_type: Any
    ) -> Turn:
        imported, recording = position.turn.imported, position.recording
        assert isinstance(recording, ConversationRecording)
        state = restore_turn(position, self.settings)
        # a memory must not learn from a stranger's text
        state.setup.set_environment(
            attended=self.services.callbacks.has("approval"),
            has_memory=self._remembers() and not imported,
        )
        output = (
            output_type_again(state.setup.output, output_type, self.services.output, self.settings)
            if state.seq
            else self._output_type(output_type)
        )
        log = self._log(state, session, recording)
        performer = self._performer(session, state, log.fence, deps, output, imported=imported)
        performer.cut_off = recording.cut_off()
        asked = (one for one in recording.entries.values() if one.kind == AskExtension.__name__)
        performer.points.recorded = {str(one.request.get("key", "")): one.reply for one in asked}

        async def reenter() -> Begun:
            begun = await enter(log.fence)
            join_session(state, session)
            log.open()  # before stored values are replaced: this is recorded as changes
            prompt = (state.setup.system_prompt, ()) if state.seq else await self._prompt(session, None)
            performer.set_prompt(*prompt)
            reopen_turn(state, await performer.reopen(state.setup.runtime), position)
            below = budget_below(self.store, state.turn_id)
            performer.spent_before(state.count("iterations"), state.count("attempts"), below)
            performer.began(state.user_content)
            return begun

        return self._turn(state, performer, log, reenter, self._durable.steps_before(position, state.seq))

    # Assembling a turn

    def _state(self, session: Session, content: Any, **more: Any) -> TurnState:
        """Return a new turn; ``more``: values by their flat names (``TurnState.of``)."""
        return TurnState.of(
            **{"state": KIND.table.initial, **more},
            agent=self.options["name"],
            session_id=session.id,
            parent_session_id=session.parent,
            settings=self.settings,
            user_content=content,
            runtime=self.services.backends.runtime(),
            attended=self.services.callbacks.has("approval"),
            has_memory=self._remembers(),
            asks=self.services.asks.requests,
            meter=session.meter,
        )

    def _remembers(self) -> bool:
        return self.services.recall is not None and self.services.recall.there

    def _output_type(self, given: Any) -> OutputType[Any] | None:
        return self.services.output if given is None else output_type_of(given, self.settings)

    def _log(
        self, state: TurnState, session: Session, recording: ConversationRecording | None = None
    ) -> ConversationLog:
        return self.log_class(self.store.database, session, state, recording, tell=self.tell)

    def _performer(
        self,
        session: Session,
        state: TurnState,
        fence: Fence,
        deps: Any,
        output: OutputType[Any] | None,
        *,
        imported: bool = False,
        features: Sequence[Extension] = (),
    ) -> EffectHandler:
        self.services.tools.refuse_without(deps)
        if output is not None:
            output.refuse_without(deps)

        def scene(**more: Any) -> RunContext[Any]:
            most = state.limits.get("iterations")
            left = None if most is None else max(0, most - state.count("iterations"))
            names = tuple(tool.name for tool in state.setup.tools)
            ids = state.session_id, state.turn_id, state.task_id
            return RunContext(deps, *ids, iterations_left=left, tools=names, **more)

        return EffectHandler(
            self.services,
            state,
            session,
            fence,
            imported=imported,
            scene=scene,
            answers=None if output is None else answers_of(output, self.services, scene),
            features=features,
        )

    async def _prompt(self, session: Session, system_message: str | None) -> tuple[str, tuple[str, ...]]:
        """Return the prompt for the primary model: a fallback must not change its bytes."""
        built_in = has_built_in_tools(self.options)

        async def recall() -> Recalled:
            notes = self.services.notes if built_in else None
            memory = self.services.recall
            return recall_files(
                notes, *(("", "") if memory is None else await memory.prompt_block(session.id))
            )

        sources = Sources(
            home=self.services.home,
            workdir=self.services.workdir,
            settings=self.settings.prompt,
            identity=self.options["system_prompt"],
            built_in=built_in,
            tools=(*self.services.tools.lasting_names, *self.services.agent_tools.names),
            model=self._primary.model,
            window=self._primary.window,
            speaker=self.options["name"] if self.options["inbox"] else "",
            recall=recall,
            extensions=prompts_in(self.services.extensions),
        )
        return await prompt_of(session.prompts, sources, system_message, self.services.clock.now())

    def _turn(
        self,
        state: TurnState,
        performer: EffectHandler,
        log: ConversationLog,
        enter: Enter,
        steps: Sequence[Step] = (),
    ) -> Turn:
        gate = PausePoint(state, KIND, self.services.signals, self.store.pause_points)
        performer.follow(gate)
        ending = replace(
            ending_of(
                self.store,
                state.turn_id,
                partial(self._result_at_end, state, performer),
                self.settings.store,
            ),
            suspended=partial(self._note_suspension, state.turn_id),
            lost=performer.abandon,
        )
        return self._durable.turn(
            state, log, gate, performer.pipeline(gate), enter, ending,
            steps=steps, bugs=performer.bugs, debug=self.services.debug,
        )  # fmt: skip

    async def _result_at_end(
        self, state: TurnState, performer: EffectHandler, steps: list[Step]
    ) -> TurnResult[Any]:
        self.session_id = state.session_id
        result = await result_of(state, steps, performer.session, performer.answers)
        if performer.bugs:
            result = result.model_copy(update={"bugs": [*map(format_traceback, performer.bugs)]})
        if not self.services.agent_tools.begin_turns:
            return result
        try:
            return result.model_copy(update={"children": children_of(self.store, state.turn_id)})
        except StoreError as error:  # the answer matters more than the list
            return result.model_copy(
                update={"cleanup_errors": [*result.cleanup_errors, f"the children are not listed: {error}"]}
            )

    def _note_suspension(self, turn_id: str, waits: Sequence[Pending]) -> None:
        about = {"turn_id": turn_id, "pending": [one.to_dict() for one in waits]}
        self.services.callbacks.publish(Named("turn:suspended", about))

    # Outside of turns

    async def aclose(self) -> None:
        """Close the resources of turns: programs, memory, tools, extensions, connections."""
        services, child = self.services, self.options["inherits"] is not None
        await services.programs.end()
        if services.recall is not None:
            await services.recall.aclose()
        await services.tools.aclose()
        services.agent_tools.close()
        if not child:
            await close_all(services.extensions, self.tell)
        borrowed = child or self.options["inbox"] is not None
        for backend in (*services.backends.chain, *services.auxiliary):
            if not borrowed or backend.choice.profile.name != "scripted":
                # a port from outside belongs to the parent
                await backend.port.aclose()

    async def compact(self, focus: str) -> dict[str, Any] | None:
        """``Agent.acompact``."""
        session = self.session()
        if not session.rows:  # a session begins with its first turn
            return None
        async with self.store.held(session.id, new_turn_id(session)) as held:
            if left := self.store.unfinished(held.id):
                raise SessionBusy(
                    f"turn {left[-1][0]} was left unfinished; resume it, or say something new, before"
                    " compacting"
                )
            state = await self._compact(held, focus)
            await self.store.save(held)
        self.session_id = state.session_id
        return state.compaction.compressions[-1] if state.compaction.compressions else None

    async def _compact(self, held: Session, focus: str) -> TurnState:
        state = self._state(held, "", state="Compress", turn_id=new_turn_id(held))
        performer = EffectHandler(self.services, state, held)
        perform = performer.pipeline()
        opened = await perform(OpenTurn())
        held.guard.clear()
        state.setup.reopen(opened)
        state.load(held.rows)
        state.compaction.begin(Compacted(held.guard.done))
        state.compaction.force(focus)
        with performer.stepping():
            await compact_history(state, perform)
        await perform(CloseTurn(silences=opened.silences))
        return state

    async def undo(self, turns: int, *, files: bool) -> Undone:
        """``Agent.aundo``."""
        from fsm_agent.sessions.store.edits import undo

        undone = await undo(self.store, self.session().id, turns)
        self.session_id = undone.session
        if not files:
            return undone
        try:
            return replace(undone, files=await asyncio.to_thread(self._put_back, undone.turns))
        except StoreError as error:
            raise StoreError(f"the turns were taken back, but not their files: {error}") from None

    def _put_back(self, turns: Sequence[str]) -> Any:
        """Restore the files that any of these turns, or their children, changed; ``None`` without a
        checkpoint."""
        with_children, checkpoints = list(turns), self.services.files.checkpoints
        for turn in with_children:
            with_children += [child.turn_id for child in children_of(self.store, turn)]
        found = checkpoints.of_turn(with_children)
        return None if found is None else checkpoints.put_back(found)
