"""What the two sides say of themselves when a session begins: the editor's launch or attach configuration, read and checked; and
what the server can, everything else in the protocol it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.dap.breakpoints import EXCEPTIONS
from fsm_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """``task``: the message of a new turn; ``turn``: one that there is (or the beginning of its id). ``table``: turns of a table
    of the user's own, ``module:name`` as on the command line. The others are the ``run``
    command's, ``settings`` nested as in ``Settings``, ``env`` set for this process. ``stop_on_entry``: stand still at once;
    ``stop_at_end``: and when the turn has ended; ``trace``: tell every move; ``resume``: go on with an unfinished turn."""

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
    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    stop_on_entry: bool = False
    stop_at_end: bool = False
    trace: bool = True
    resume: bool = False
    no_debug: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, attach: bool) -> LaunchOptions:
        """From the arguments of the request; editors add their own, which are not looked at. Raises ``ConfigError``."""
        given = {
            own: _typed(name, kind, arguments[name]) for name, (own, kind) in NAMES.items() if arguments.get(name) is not None
        }
        options = cls(attach=attach, **given)
        if options.task is not None and options.turn is not None:
            raise ConfigError("only one turn can be debugged first", None, "one of task and turn")
        if attach and options.task is not None:
            raise ConfigError("attaching starts no turn", "task", "a launch configuration, or turn")
        if options.task is not None and options.table is None and not options.task.strip():
            raise ConfigError("task is empty", options.task, "the message that the turn begins with")
        return options

    @property
    def own_debug_session(self) -> bool:
        """Do they ask for another agent or home than the server was started with?"""
        named = (self.table, self.model, self.base_url, self.home, self.session, self.cwd, self.max_iterations)
        return any(one is not None for one in named) or bool(self.settings or self.env)


Opener = Callable[[LaunchOptions], DebugSession]
"""Makes the debug session that a configuration asks for. Raises ``ConfigError``."""

NAMES: Mapping[str, tuple[str, type]] = {
    "table": ("table", str), "task": ("task", str), "turn": ("turn", str), "model": ("model", str), "baseUrl": ("base_url", str),
    "home": ("home", str),
    "session": ("session", str), "cwd": ("cwd", str), "maxIterations": ("max_iterations", int), "settings": ("settings", dict),
    "env": ("env", dict), "stopOnEntry": ("stop_on_entry", bool), "stopAtEnd": ("stop_at_end", bool), "trace": ("trace", bool),
    "resume": ("resume", bool), "noDebug": ("no_debug", bool),
}  # fmt: skip
_CALLED = {str: "text", int: "a whole number", bool: "true or false", dict: "an object"}


def _typed(name: str, kind: type, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{name} has the wrong type", value, _CALLED[kind])
    if name == "env" and isinstance(value, dict) and not all(isinstance(one, str) for one in value.values()):
        raise ConfigError("env has the wrong type", None, "names and texts")
    return value


CAPABILITIES: Mapping[str, Any] = {
    "supportsConfigurationDoneRequest": True,
    "supportsFunctionBreakpoints": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsLogPoints": True,
    "supportsBreakpointLocationsRequest": True,
    "supportsExceptionInfoRequest": True,
    "supportsExceptionFilterOptions": True,
    "supportsEvaluateForHovers": True,
    "supportsClipboardContext": True,
    "supportsCompletionsRequest": True,
    "completionTriggerCharacters": [":", "."],
    "supportsStepBack": True,
    "supportsRestartFrame": True,
    "supportsSetVariable": True,
    "supportsDelayedStackTraceLoading": True,
    "supportsLoadedSourcesRequest": True,
    "supportsTerminateRequest": True,
    "supportsTerminateThreadsRequest": True,
    "supportTerminateDebuggee": True,
    "supportsSingleThreadExecutionRequests": True,
    "exceptionBreakpointFilters": [
        {
            "filter": one.name, "label": one.label, "default": True, "supportsCondition": one.target is not None,
            **({"conditionDescription": "over the counters: retries >= 2"} if one.target is not None else {}),
        }
        for one in EXCEPTIONS
    ],
}  # fmt: skip
