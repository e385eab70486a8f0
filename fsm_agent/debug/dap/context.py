"""The context of one session's requests: its turns, its breakpoints, the values shown, and the messages to
the editor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from fsm_agent.debug.core.breakpoints import BreakpointHit
from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.dap.breakpoints import (
    EXCEPTIONS,
    EditorBreakpoints,
    breakpoint_json,
    state_sources,
    table_map_of,
)
from fsm_agent.debug.dap.protocol import Client, Outbox
from fsm_agent.debug.dap.threads import Hear, StackFrames, Stop, TurnThread, TurnThreads, stop_of
from fsm_agent.debug.dap.variables import References, settable
from fsm_agent.errors import ConfigError
from fsm_agent.settings.errors import words_at

# ----------------------------------------------------------------------------------------------------
# What the two sides announce when a session begins: the editor's launch or attach configuration, validated,
# and the server's capabilities; it has no others.


class LaunchOptions(BaseModel):
    """``task``: the message of a new turn; ``turn``: the id of an existing one, or its beginning. ``table``:
    turns of a custom table, ``module:name`` as on the command line. ``stop_on_entry``: pause before the first
    move; ``stop_at_end``: also pause when the turn has ended; ``trace``: report every move; ``resume``:
    continue an unfinished turn. The others are those of the ``run`` command, ``settings`` nested as in
    ``Settings``, ``env`` set for this process. ``token``: the token that a server on a port printed."""

    model_config = ConfigDict(frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True)

    attach: bool = False
    table: str | None = None
    task: str | None = None
    turn: str | None = None
    model: str | None = None
    base_url: str | None = None
    home: str | None = None
    session: str | None = None
    cwd: str | None = None
    max_iterations: int | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    stop_on_entry: bool = False
    stop_at_end: bool = False
    trace: bool = True
    resume: bool = False
    no_debug: bool = False
    token: str | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, attach: bool) -> LaunchOptions:
        """Parse the arguments of the request; ignore the ones that editors add. Raises ``ConfigError``."""
        try:
            given = {name: arguments[name] for name in NAMES if arguments.get(name) is not None}
            options = cls.model_validate(given | {"attach": attach})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            value = None if first["loc"][0] == "env" else first["input"]  # it may contain keys
            allowed = words_at(cls, first["loc"], first["msg"])
            raise ConfigError(f"{first['loc'][0]} has the wrong type", value, allowed) from None
        if options.task is not None and options.turn is not None:
            raise ConfigError("only one turn can be debugged first", None, "one of task and turn")
        if attach and options.task is not None:
            raise ConfigError("attaching starts no turn", "task", "a launch configuration, or turn")
        if options.task is not None and options.table is None and not options.task.strip():
            raise ConfigError("task is empty", options.task, "the message that the turn begins with")
        return options

    @property
    def own_debug_session(self) -> bool:
        """Return whether the options need another agent or home than the server was started with."""
        named = (
            self.table,
            self.model,
            self.base_url,
            self.home,
            self.session,
            self.cwd,
            self.max_iterations,
        )
        return any(one is not None for one in named) or bool(self.settings or self.env)


Opener = Callable[[LaunchOptions], DebugSession]
"""Creates the debug session for a configuration. Raises ``ConfigError``."""

NAMES = tuple(str(one.alias) for name, one in LaunchOptions.model_fields.items() if name != "attach")
"""Arguments in the editor's format."""
CAPABILITIES: Mapping[str, Any] = {
    **dict.fromkeys((
        "supportsConfigurationDoneRequest", "supportsFunctionBreakpoints", "supportsConditionalBreakpoints",
        "supportsHitConditionalBreakpoints", "supportsLogPoints", "supportsBreakpointLocationsRequest",
        "supportsExceptionInfoRequest", "supportsExceptionFilterOptions", "supportsEvaluateForHovers",
        "supportsClipboardContext", "supportsCompletionsRequest", "supportsStepBack", "supportsRestartFrame",
        "supportsSetVariable", "supportsDelayedStackTraceLoading", "supportsLoadedSourcesRequest",
        "supportsTerminateRequest", "supportsTerminateThreadsRequest", "supportTerminateDebuggee",
        "supportsSingleThreadExecutionRequests",
    ), True),
    "completionTriggerCharacters": [":", "."],
    "exceptionBreakpointFilters": [
        {
            "filter": one.name, "label": one.label, "default": True,
            "supportsCondition": one.target is not None,
            **({"conditionDescription": "over the counters: retries >= 2"} if one.target is not None else {}),
        }
        for one in EXCEPTIONS
    ],
}  # fmt: skip


ENDS = {"completed": 0, "failed": 1, "partial": 3, "interrupted": 130}
"""Exit code by a turn's outcome, as for the ``run`` command."""


@dataclass(slots=True)
class EditorContext:
    """Used by one thread only. ``later`` runs after the current response is sent. ``ending``: the editor has
    asked to end the session; ``ended``: the editor has been notified of its end."""

    session: DebugSession
    outbox: Outbox
    hear: Hear
    client: Client = field(default_factory=Client)
    options: LaunchOptions = field(default_factory=LaunchOptions)
    ending: bool = False
    ended: bool = False
    focus: TurnThread | None = None
    threads: TurnThreads = field(init=False)
    breakpoints: EditorBreakpoints = field(init=False)
    frames: StackFrames = field(init=False)
    references: References = field(init=False)
    _later: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.threads = TurnThreads(self.hear)
        self.references = References(settable, self.outbox.secrets)
        self.of(self.session)

    def of(self, session: DebugSession) -> None:
        """Switch to the turns of ``session`` before any is open. If its table is another one, resolve the
        existing breakpoints again."""
        before = getattr(self, "breakpoints", None)
        self.session = session
        table, states = session.kind.table, state_sources(session.kind.states)
        if before is not None and before.table is table:
            return
        map = table_map_of(table)
        self.breakpoints = EditorBreakpoints(table, map, states)
        self.frames = StackFrames((session.kind, *session.kind.inner.values()))
        for point in self.breakpoints.again(before) if before is not None else ():
            self.outbox.event(
                "breakpoint", {"reason": "changed", "breakpoint": breakpoint_json(point, self.client, map)}
            )

    def later(self, work: Callable[[], None]) -> None:
        """Run ``work`` after the response to the current request."""
        self._later.append(work)

    def settle(self) -> None:
        """Run the deferred work, after the response was sent."""
        work, self._later = self._later, []
        for one in work:
            one()

    # Threads

    def open(self, debugger: Debugger) -> TurnThread:
        """Show a turn as a thread, with the session's breakpoints."""
        thread = self.threads.open(debugger)
        self.focus = thread
        self.arm(thread)
        self.outbox.event("thread", {"reason": "started", "threadId": thread.id})
        return thread

    def arm(self, thread: TurnThread) -> None:
        """Set the session's breakpoints in a turn of the same table; clear them in any other."""
        other = thread.debugger.table is not self.breakpoints.table
        wanted = [] if self.options.no_debug or other else self.breakpoints.core()
        try:
            thread.debugger.set_breakpoints(wanted)
        except ConfigError as error:
            self.outbox.output(f"breakpoints do not stop {thread.name}: {error}", "important")

    def stopped(self, thread: TurnThread, stop: Stop, *, focus: bool = True) -> None:
        """Report that a turn is paused."""
        thread.stop = stop
        self.references.forget(thread.id)
        body: dict[str, Any] = {
            "reason": stop.reason, "description": stop.description, "threadId": thread.id,
            "preserveFocusHint": not focus,
            "allThreadsStopped": False,
        }  # fmt: skip
        if stop.text:
            body["text"] = stop.text
        if stop.hits:
            body["hitBreakpointIds"] = list(stop.hits)
        if focus:
            self.focus = thread
        self.outbox.event("stopped", body)

    def stands(self, thread: TurnThread) -> None:
        """Report that the engine of a turn is paused, and why."""
        self.stopped(thread, stop_of(thread, self.breakpoints))

    def looks(self, thread: TurnThread, hits: Iterable[BreakpointHit] = ()) -> None:
        """Report the inspected position and the breakpoints hit there."""
        numbers = tuple(point.id for point in self.breakpoints.of(hit.breakpoint.id for hit in hits))
        self.stopped(thread, inspection_stop(thread, self.breakpoints, numbers))

    def running(self, thread: TurnThread) -> None:
        """Mark a turn as running because the editor continued it."""
        thread.stop = None
        self.references.forget(thread.id)

    def finish(self, thread: TurnThread) -> None:
        """End the thread of a turn; after the last thread, end the session."""
        thread.over, thread.stop = True, None
        thread.unlisten()
        self.outbox.event("thread", {"reason": "exited", "threadId": thread.id})
        if next(iter(self.threads), None) is None:
            outcome = thread.debugger.record.info.outcome
            self.outbox.event("exited", {"exitCode": ENDS.get(outcome or "", 1)})
            self.terminated()

    def terminated(self) -> None:
        """Notify the editor, once, that the session is over."""
        if not self.ended:
            self.ended = True
            self.outbox.event("terminated")

    # Branches

    def branch(
        self, thread: TurnThread, at: int, edit: Mapping[str, Any], why: str, *, again: bool = False
    ) -> None:
        """Fork a turn at a position, in a paused thread of its own. ``again``: the editor assumes that the
        old turn is running and must be notified that it is not. Raises ``ConfigError``."""
        debugger = self.session.fork(thread.debugger.id, at, edit)

        def tell() -> None:
            if again and thread.stop is not None:
                self.stopped(thread, thread.stop, focus=False)
            fork = self.open(debugger)
            self.outbox.output(
                f"{why}: turn {debugger.id} continues from move {at}; {thread.debugger.id} stays as it is",
                "important",
            )
            self.stopped(fork, Stop("restart", f"Forked from move {at}: {why}"))

        self.later(tell)

    def revive(self, thread: TurnThread) -> None:
        """Resume an unfinished turn in its thread. Raises ``ConfigError``, ``SessionBusy``."""
        debugger = self.session.resume(thread.debugger.id)
        thread.unlisten()
        thread.debugger = debugger
        thread.unlisten = debugger.listen(lambda event: self.hear(thread, event))
        self.arm(thread)
        self.later(lambda: self.stands(thread))

    def look(self, thread: TurnThread, at: int) -> None:
        """Inspect a position."""
        thread.stand()
        thread.debugger.cursor.to(at)
        self.later(lambda: self.looks(thread))


def inspection_stop(thread: TurnThread, breakpoints: EditorBreakpoints, hits: tuple[int, ...] = ()) -> Stop:
    """Return why a turn is reported as paused after its inspected position changed."""
    if not thread.looking_back:
        stop = stop_of(thread, breakpoints)
        return (
            Stop("breakpoint", stop.description, hits=hits)
            if hits
            else Stop("step", stop.description, stop.text, stop.hits)
        )
    where = f"Looking back at move {thread.at} of {thread.debugger.record.count}"
    if hits:
        return Stop("breakpoint", where, hits=hits)
    return Stop("entry" if thread.at == 0 else "step", where)
