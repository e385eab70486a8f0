"""What the two sides say of themselves when a session begins: the editor's launch or attach configuration,
read and checked; and what the server can, everything else in the protocol it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.dap.breakpoints import EXCEPTIONS
from fsm_agent.errors import ConfigError
from fsm_agent.settings.setting_docs import words_at


class LaunchOptions(BaseModel):
    """``task``: the message of a new turn; ``turn``: one that there is (or the beginning of its id).
    ``table``: turns of a table of the user's own, ``module:name`` as on the command line. ``stop_on_entry``:
    stand still at once; ``stop_at_end``: and when the turn has ended; ``trace``: tell every move; ``resume``:
    go on with an unfinished turn. The others are the ``run`` command's, ``settings`` nested as in
    ``Settings``, ``env`` set for this process. ``token``: what a server on a port printed."""

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
        """From the arguments of the request; editors add their own, which are not looked at. Raises
        ``ConfigError``."""
        try:
            given = {name: arguments[name] for name in NAMES if arguments.get(name) is not None}
            options = cls.model_validate(given | {"attach": attach})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            value = None if first["loc"][0] == "env" else first["input"]  # it may hold keys
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
        """Do they ask for another agent or home than the server was started with?"""
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
"""Makes the debug session that a configuration asks for. Raises ``ConfigError``."""

NAMES = tuple(str(one.alias) for name, one in LaunchOptions.model_fields.items() if name != "attach")
"""As the editor has them."""
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
