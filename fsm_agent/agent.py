"""``Agent``: a model, tools, settings and a session, put together."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsm_agent.approvals import Approvals
from fsm_agent.backends import Backends, fallback_backends, make_backend
from fsm_agent.backoff import Backoff
from fsm_agent.budget import IterationBudget
from fsm_agent.callbacks import Callbacks
from fsm_agent.clock import SystemClock
from fsm_agent.credentials import ApiKey
from fsm_agent.errors import ConfigError
from fsm_agent.home import home_of
from fsm_agent.journal import MemoryJournal, Step
from fsm_agent.messages import Message, messages_from
from fsm_agent.perform import RESULTS, Performer, World
from fsm_agent.ports import Clock, ModelPort
from fsm_agent.prompt import system_prompt as default_prompt
from fsm_agent.providers.choose import Choice
from fsm_agent.providers.connect import connect
from fsm_agent.result import TurnResult
from fsm_agent.root import MACHINE, STATES, TurnState, result_of
from fsm_agent.runner import Runner
from fsm_agent.sessions import Session, store_for
from fsm_agent.settings import Settings
from fsm_agent.signals import SignalBox
from fsm_agent.threads import LOOP
from fsm_agent.tools import Tool, as_tool
from fsm_agent.tools.runner import ToolRunner
from fsm_agent.toolsets import toolset
from fsm_agent.turns import Turn

MAX_MESSAGE = 8_000_000
"""Characters of one user message; more is refused, not cut."""


class Agent:
    """An agent: a model, tools, settings, and a session that goes on from turn to turn.

    ``model``: ``"<provider>:<model>"``, a ``ModelPort`` (a scripted one for instance), or ``None`` to take what is there:
    ``FSM_AGENT_MODEL``, a key in the environment, a local server, else the offline demo. ``api_key``: a string, a list, or
    an object with ``get()`` and ``refresh()``. ``tools``: decorated or plain functions. ``toolsets``: names of built-in
    groups, ``[]`` for none. ``fallbacks``: dicts with the keys model (or a port), base_url, api_key, api_mode, context_window.
    ``callbacks``: see ``fsm_agent.callbacks``. ``clock``: every wait and time limit goes through it. ``budget``: iterations
    shared with other agents.

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
        toolsets: Sequence[str] = ("core",),
        system_prompt: str | None = None,
        fallbacks: Sequence[Mapping[str, Any]] | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        home: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        callbacks: object | Mapping[str, Callable[..., Any]] | None = None,
        clock: Clock | None = None,
        budget: IterationBudget | None = None,
        workdir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.settings = Settings.of(settings)
        self.home = home_of(home, os.environ)
        self.session_id = session_id or f"s-{uuid.uuid4().hex[:12]}"
        self.journal = MemoryJournal()
        self.signals = SignalBox()
        self._system_prompt = system_prompt
        self._workdir = Path(workdir or Path.cwd())
        clock = clock or SystemClock()
        backends, notices = self._backends(model, fallbacks, base_url, api_key, api_mode, context_window, clock)
        told = Callbacks(callbacks)
        poll = self.settings.poll.control
        self._world = World(
            settings=self.settings,
            clock=clock,
            backends=backends,
            tools=ToolRunner(
                self._tools(tools, toolsets), clock=clock, interrupt_grace=self.settings.tool.interrupt_grace, poll=poll
            ),
            callbacks=told,
            approvals=Approvals(told, clock, self.settings.approval.timeout, poll),
            backoff=_backoff(self.settings),
            signals=self.signals,
            home=self.home,
            workdir=self._workdir,
            budget=budget,
            notices=tuple(notices),
        )

    # Turns

    def chat(self, user_message: str) -> str:
        """One turn; only its text."""
        return self.run_conversation(user_message).final_response or ""

    def run_conversation(
        self,
        user_message: str | Sequence[Mapping[str, Any]],
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
    ) -> TurnResult:
        """One turn, synchronously; also inside a running event loop."""
        return self.start(user_message, system_message, conversation_history, task_id).run()

    async def arun(
        self,
        user_message: str | Sequence[Mapping[str, Any]],
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
    ) -> TurnResult:
        """One turn, asynchronously."""
        return await self.start(user_message, system_message, conversation_history, task_id).arun()

    def start(
        self,
        user_message: str | Sequence[Mapping[str, Any]],
        system_message: str | None = None,
        conversation_history: Sequence[Mapping[str, Any] | Message] | None = None,
        task_id: str | None = None,
    ) -> Turn:
        """A turn that has not moved yet. ``conversation_history`` replaces the session's rows and is never changed.

        Raises ``ConfigError`` for a message that is empty, too long, or neither text nor a list of parts.
        """
        session = store_for(str(self.home)).session(self.session_id)
        prompt = self._prompt(session, system_message)
        state = TurnState(
            turn_id=f"{self.session_id}-{uuid.uuid4().hex[:8]}",
            session_id=self.session_id,
            task_id=task_id or str(uuid.uuid4()),
            settings=self.settings,
            user_content=_checked_message(user_message),
            runtime=self._world.backends.runtime(),
            attended=self._world.callbacks.has("approval"),
            supplied_history=None if conversation_history is None else tuple(messages_from(conversation_history)),
            wire=session.wire,
        )
        performer = Performer(self._world, session, prompt)
        runner = Runner(state, MACHINE, STATES, performer, self.journal, self._moved(state))
        return Turn(state, runner, session, lambda steps: result_of(state, steps, session))

    def interrupt(self, message: str | None = None) -> None:
        """Stop the running turn, or the next one before its first request. From any thread; idempotent."""
        self.signals.interrupt(message)

    def steer(self, text: str) -> None:
        """Tell the running turn something without stopping it: the model reads it with the next tool result."""
        self.signals.steer(text)

    async def aclose(self) -> None:
        """Close the connections of this agent."""
        for port in self._world.backends.ports():
            await port.aclose()

    def close(self) -> None:
        """``aclose``, synchronously."""
        LOOP.run(self.aclose())

    # Composition

    def _backends(
        self,
        model: str | ModelPort | None,
        fallbacks: Sequence[Mapping[str, Any]] | None,
        base_url: str | None,
        api_key: ApiKey,
        api_mode: str | None,
        context_window: int | None,
        clock: Clock,
    ) -> tuple[Backends, list[str]]:
        def port(choice: Choice) -> ModelPort:
            return connect(choice, self.settings, clock)

        if not (model is None or isinstance(model, str) or hasattr(model, "call")):
            raise ConfigError("model has the wrong type", type(model).__name__, '"<provider>:<model>" or a model port')
        spec = {
            "model": model,
            "base_url": base_url,
            "api_key": api_key,
            "api_mode": api_mode,
            "context_window": context_window,
        }
        primary = make_backend(spec, os.environ, self.settings, port)
        chain, notices = fallback_backends(fallbacks, os.environ, self.settings, port)
        return Backends(primary, chain, self.settings, clock), notices

    def _tools(self, tools: Sequence[Tool | Callable[..., Any]], toolsets: Sequence[str]) -> list[Tool]:
        if isinstance(toolsets, str):
            raise ConfigError("toolsets has the wrong type", toolsets, "a list of names")
        own = [as_tool(one) for one in tools]
        names = {one.spec.name for one in own}
        results = self.home / RESULTS
        offered = [one for name in dict.fromkeys(toolsets) for one in toolset(name, self._workdir, results)]
        built_in = [one for one in offered if one.spec.name not in names]
        return [*built_in, *own]

    def _prompt(self, session: Session, system_message: str | None) -> str:
        """Built once for a session and caller's message, then the same bytes for ever."""
        key = system_message or ""
        if key not in session.prompts:
            session.prompts[key] = default_prompt(self._system_prompt, system_message, self._workdir, self._world.clock.now())
        return session.prompts[key]

    def _moved(self, state: TurnState) -> Callable[[Step], None]:
        def tell(step: Step) -> None:
            self._world.callbacks.emit("transition", state.turn_id, step.source, step.event, step.dest, state.counters())

        return tell


def _checked_message(content: Any) -> Any:
    if isinstance(content, str):
        if not content.strip():
            raise ConfigError("the message is empty", content, "some text")
        if len(content) > MAX_MESSAGE:
            raise ConfigError("the message is too long", f"{len(content):,} characters", f"up to {MAX_MESSAGE:,}")
        return content
    if isinstance(content, Sequence) and content and all(isinstance(part, Mapping) and "type" in part for part in content):
        return [dict(part) for part in content]
    raise ConfigError("the message has the wrong type", type(content).__name__, "text, or a list of content parts")


def _backoff(settings: Settings) -> Backoff:
    waits = settings.backoff
    return Backoff(
        exception=(waits.exception.base, waits.exception.cap),
        invalid=(waits.invalid.base, waits.invalid.cap),
        jitter=waits.jitter,
        retry_after_cap=settings.retry_after_cap,
        rng=random.Random(waits.seed),  # noqa: S311 - jitter, not a secret
    )
