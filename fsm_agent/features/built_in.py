"""The list of an agent's features and the order of their layers. Unused features are not loaded; those
without a module of their own are here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fsm_agent.conversation.effects import (
    AnswerProgram,
    BeginReview,
    Done,
    FilesKept,
    KeepFiles,
    NameSession,
    OutputSpec,
    RunTool,
    ToolOutcome,
    Transform,
    Transformed,
)
from fsm_agent.errors import StoreError
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features import Ground
from fsm_agent.fsm.runner import Layer, Perform
from fsm_agent.options import AgentOptions, by_task
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.events import ToolComplete, ToolProgress
from fsm_agent.sessions import Session
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.settings import Settings
from fsm_agent.support.texts import one_line
from fsm_agent.telemetry import tracing_of
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets.agent import Background, ChildTask
from fsm_agent.toolsets.agent.background import REVIEW, TITLE, review_of, title_of

if TYPE_CHECKING:
    from fsm_agent.features.answers import Answers
    from fsm_agent.features.context import MemoryRecall
    from fsm_agent.output import OutputType
    from fsm_agent.tools import RunContext


def features_of(ground: Ground) -> tuple[Extension, ...]:
    """Return the features of an agent, the outermost first."""
    options, found = ground.options, list[Extension]()
    if ground.telemetry is not None:
        found.append(tracing_of(ground.telemetry, ground.store))
    if ground.settings.limits.each:
        found += limit_features((), ground, ground.settings)
    found += [*ground.extensions, CallbackCalls(ground)]
    if options["hooks"] or options["input_guardrails"] or options["output_guardrails"]:
        from fsm_agent.features.hooks import HookCalls

        found.append(HookCalls(ground))
    if options["context_engine"] is not None:
        from fsm_agent.features.context import EngineCalls

        found.append(EngineCalls(ground))
    found += [*(() if ground.recall is None else (ground.recall,)), ground.files]
    if ground.background is not None:
        found.append(BackgroundTasks(ground.background, ground))
    return tuple(found)


def limit_features(
    features: Sequence[Extension], ground: Ground, settings: Settings
) -> tuple[Extension, ...]:
    """Return the features of a turn with limits of its own."""
    from fsm_agent.features.limits import Limits

    return (Limits(ground, settings), *(one for one in features if not isinstance(one, Limits)))


def memory_of(ground: Ground) -> MemoryRecall | None:
    """Return the feature ``memory`` of an agent with an external memory, or with callbacks, which may give
    context. Raises ``ConfigError``."""
    if ground.options["memory"] is None and ground.options["callbacks"] is None:
        return None
    from fsm_agent.features.context import MemoryRecall

    return MemoryRecall(ground)


def output_type_of(wanted: Any, settings: Settings) -> OutputType[Any] | None:
    """Return the type of an answer; ``None`` for ``str``, which every answer is. Raises ``ConfigError``."""
    if wanted is None or wanted is str:
        return None
    from fsm_agent.features.answers import output_type_of

    return output_type_of(wanted, settings)


def output_type_again(
    stored: OutputSpec | None, given: Any, agents: OutputType[Any] | None, settings: Settings
) -> OutputType[Any] | None:
    """Return the answer type of a resumed turn. Raises ``ConfigError``."""
    if stored is None and given is None:
        return None
    from fsm_agent.features.answers import output_type_again

    return output_type_again(stored, given, agents, settings)


def answers_of(kind: OutputType[Any], ground: Ground, scene: Callable[[], RunContext[Any]]) -> Answers:
    """Return the feature of a turn with a typed answer."""
    from fsm_agent.features.answers import Answers

    return Answers(kind, ground.clock, ground.settings, ground.signals, scene)


# ----------------------------------------------------------------------------------------------------
# The feature ``callbacks``: callbacks that may change the outcome of a call and the delivered answer.


class CallbackCalls(Extension):
    """The callbacks of one agent."""

    name = "callbacks"

    def __init__(self, ground: Ground) -> None:
        self._callbacks = ground.callbacks

    def in_turn(self, here: Here) -> Part:
        outcomes = Layer("outcomes", partial(self._outcome, here), (RunTool, AnswerProgram))
        return Part({Transform: self._transform}, (outcomes,))

    async def _outcome(
        self, here: Here, request: RunTool | AnswerProgram, turn: Any, call_next: Perform
    ) -> Any:
        """Let the callback ``after_tool`` change the outcome of a call, and publish the outcome; a failed
        callback changes nothing. A program's request and a call whose result comes later have no outcome
        yet."""
        callbacks, call = self._callbacks, here.call_of(request)
        ended = await call_next(request)
        if call is None or not isinstance(ended, ToolOutcome):
            return ended
        outcome, arguments = ended, dict(call.arguments)
        if callbacks.has("after_tool"):
            values = (call.name, dict(arguments), outcome.text, outcome.status)
            text = await callbacks.ask_text("after_tool", *values)
            outcome = outcome if text is None else replace(outcome, text=text)
        callbacks.publish(ToolComplete(call.call_id, call.name, arguments, outcome.text, outcome.status))
        publish_progress(callbacks, "completed", call, lambda: outcome.text)
        return outcome

    async def _transform(self, request: Transform) -> Transformed:
        answer = await self._callbacks.ask_text("transform", request.text)
        return Transformed(None if answer == request.text else answer)


def publish_progress(callbacks: Callbacks, what: str, call: RunTool, preview: Callable[[], str]) -> None:
    """Publish the progress of a call."""
    if callbacks.hears(ToolProgress):
        callbacks.publish(ToolProgress(what, call.name, one_line(preview(), 120)))


# ----------------------------------------------------------------------------------------------------
# The feature ``checkpoints``: keeps the files of the working directory before a tool changes them.


class FileCheckpoints(Extension):
    """The file checkpoints of one agent. The turn reports files that are too large to keep; if there is never
    a checkpoint, ``doctor`` reports that."""

    name = "checkpoints"

    def __init__(self, ground: Ground) -> None:
        self.checkpoints = Checkpoints(ground.home, ground.workdir, ground.settings.checkpoints)

    def in_turn(self, here: Here) -> Part:
        return Part({KeepFiles: partial(self._keep, here)})

    async def _keep(self, here: Here, request: KeepFiles) -> FilesKept:
        if why := self.checkpoints.trouble:
            return FilesKept(problem=why)
        about = {"session": here.session.id, "turn": here.fence.turn_id}
        try:
            kept = await asyncio.to_thread(self.checkpoints.make, request.key, tool=request.tool, **about)
        except StoreError as error:
            here.tell(f"no checkpoint of the files before {request.tool}, which runs all the same: {error}")
            return FilesKept(problem=str(error))
        return FilesKept(kept.id)


# ----------------------------------------------------------------------------------------------------
# The feature ``background``: reports of tasks beside the conversation, its review, and its title.


class BackgroundTasks(Extension):
    """The background tasks of one agent."""

    name = "background"

    def __init__(self, tasks: Background, ground: Ground) -> None:
        self._tasks, self._ground = tasks, ground

    def in_turn(self, here: Here) -> Part:
        return _Tasks(self._tasks, self._ground, here)


class _Tasks(Part):
    def __init__(self, tasks: Background, ground: Ground, here: Here) -> None:
        super().__init__({BeginReview: self._review, NameSession: self._title})
        self._tasks, self._ground, self._here = tasks, ground, here

    async def opening(self) -> Mapping[str, Any]:
        session, every = self._here.session, self._here.settings.memory.review_every
        due = every > 0 and (session.turns + 1) % every == 0 and self._ground.agent_tools.handles("memory")
        unnamed = session.turns == 0 and session.kind == "root" and TITLE in self._tasks.quiet
        return {"review_due": due, "unnamed": unnamed, "news": await self._news()}

    def reopened(self) -> None:
        self._tasks.refresh()

    async def news(self) -> tuple[str, ...]:
        return await self._news() if self._tasks.fresh else ()

    async def _news(self) -> tuple[str, ...]:
        return await self._tasks.news(
            self._here.session, self._here.fence, self._ground.backends.runtime().window
        )

    async def _review(self, request: BeginReview) -> Done:
        """Begin a review; report one that cannot begin, without failing. Children are not reviewed."""
        return await self._begin(review_of, "the conversation is not reviewed")

    async def _title(self, request: NameSession) -> Done:
        """Ask for a title; a session without one keeps its first words."""
        return await self._begin(title_of, "no title is looked for")

    async def _begin(
        self, task_of: Callable[[Session, str, IterationBudget], ChildTask], otherwise: str
    ) -> Done:
        here = self._here
        if here.budget is None or not self._ground.child_factory.allowed:
            return Done()
        budget = here.budget.child(here.settings.delegation.budget, here.settings.memory.review_iterations)
        try:
            await self._tasks.begin([task_of(here.session, here.fence.turn_id, budget)], here.fence)
        except ToolFailure as error:
            here.tell(f"{otherwise}: {error}")
        return Done()


def background_of(ground: Ground) -> Background | None:
    """Return the background tasks of an agent that talks to a person; ``None`` for a child."""
    options = ground.options
    if options["inherits"] is not None:
        return None
    settings, children = ground.settings, ground.child_factory
    delegates = settings.delegation.background and "delegate" in (options["toolsets"] or ())
    background = Background(
        children,
        ground.store,
        ground.callbacks,
        ground.clock,
        settings,
        able=delegates and children.allowed,
        quiet=_quiet(options, settings) if children.allowed else (),
    )
    ground.signals.listeners.append(background.interrupt)
    return background


def _quiet(options: AgentOptions, settings: Settings) -> tuple[str, ...]:
    """Return the kinds of background tasks without a report that this agent begins."""
    review = (REVIEW,) if settings.memory.review == "child" else ()
    return (*review, TITLE) if by_task(options["auxiliary"])[TITLE] else review
