"""``@tool`` makes a Python function callable by a model."""

from __future__ import annotations

import functools
import inspect
import re
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, overload

from fsm_agent.conversation.effects import Concurrency, ToolSpec
from fsm_agent.errors import ConfigError, expect, near
from fsm_agent.request import Effect
from fsm_agent.support.threads import Interrupt
from fsm_agent.tools.signature import KEY, Signature, signature_of

# ----------------------------------------------------------------------------------------------------
# Where the calls of a sandboxed tool run, and the consequences for approval.


LEAVES = "outside"
"""The argument with which a call requests to run outside its tool's sandbox."""
OUTSIDE = "OUTSIDE the sandbox, with all your rights"


@dataclass(frozen=True, slots=True)
class Confinement:
    """The sandbox of a tool. ``inside`` names it in words. ``free``: a call inside needs no approval."""

    inside: str
    free: bool = False

    def left_by(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments runs outside: if ``outside`` is not plainly false."""
        return arguments.get(LEAVES, False) is not False

    def where(self, arguments: Mapping[str, Any]) -> str:
        """Return where the call runs, for the approver."""
        return OUTSIDE if self.left_by(arguments) else self.inside

    def frees(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the sandbox makes approval of the call unnecessary."""
        return self.free and not self.left_by(arguments)


# ----------------------------------------------------------------------------------------------------
# The decorator.


# Descriptions of parameters, parsed from a docstring.


_HEADER = re.compile(r"\s*(?:args|arguments|parameters|params)\s*:\s*$", re.IGNORECASE)
_SPHINX = re.compile(r"\s*:param\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:\s*(?P<text>.*)$")
_SPHINX_TYPE = re.compile(r"\s*:(?:type\s+\w+|rtype)\s*:")
_PLAIN = re.compile(r"\s*(?:[-*]\s+)?`{0,2}(?P<name>\w+)`{0,2}\s*(?:\([^()]*\)\s*)?:(?=\s|$)(?P<text>.*)$")


def describe(docstring: str | None, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the description of the tool, and that of each parameter in ``names``.

    Understands ``Args:`` sections (Google), ``:param name: text`` (Sphinx) and plain ``name: text`` lines; a
    deeper indented line continues the entry above it. Text that describes no parameter belongs to the
    description of the tool."""
    kept: list[str] = []
    found: dict[str, str] = {}
    current, indent = "", 0
    for line in inspect.cleandoc(docstring or "").splitlines():
        depth = len(line) - len(line.lstrip())
        entry = _SPHINX.match(line) or _PLAIN.match(line)
        if entry and entry["name"] in names and entry["name"] not in found:
            current, indent = entry["name"], depth
            found[current] = entry["text"].strip()
        elif current and line.strip() and depth > indent:
            found[current] = f"{found[current]} {line.strip()}".strip()
        else:
            current = ""
            if not _HEADER.match(line) and not _SPHINX_TYPE.match(line):
                kept.append(line.rstrip())
    first = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return first, {name: text for name, text in found.items() if text}


def undeclared_parameter(docstring: str | None, names: Collection[str]) -> str | None:
    """Return the first parameter described in an ``Args:`` section or by ``:param`` that is not among
    ``names``; ``None`` if all are there. Plain lines may be anything."""
    section = entries = -1
    for line in inspect.cleandoc(docstring or "").splitlines():
        depth = len(line) - len(line.lstrip())
        if _HEADER.match(line):
            section, entries = depth, -1
        elif line.strip() and depth <= section:
            section = -1
        elif line.strip() and section >= 0 and entries < 0:
            entries = depth
        entry = _SPHINX.match(line) or (_PLAIN.match(line) if 0 <= section < depth == entries else None)
        if entry and entry["name"] not in names:
            return entry["name"]
    return None


Approval = Literal["never", "ask"]
Handler = Callable[..., Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Function names that the chat-completions and messages APIs accept."""

MOST = 1_000_000_000
"""Maximum of a tool's options in seconds or characters: timers and arithmetic handle no more."""
_MADE: weakref.WeakKeyDictionary[types.FunctionType, dict[Hashable, tuple[ToolSpec, Signature]]] = (
    weakref.WeakKeyDictionary()
)
"""Parsed functions, by their options: built-in tools are the same methods on each agent's objects, and
parsing one takes about a millisecond."""


@dataclass(frozen=True)
class Tool:
    """A function with its description for the turn. Calling a ``Tool`` calls the function, unchecked.

    ``external``: its results are wrapped as untrusted data. ``closer`` releases the tool's resources
    (processes, connections) when its agent is closed; tools may share one, and it may be called twice.
    ``confinement``: the sandbox of its calls, if any."""

    spec: ToolSpec
    handler: Handler
    is_async: bool
    signature: Signature = field(repr=False)
    external: bool = False
    closer: Callable[[], None] | None = field(default=None, repr=False)
    confinement: Confinement | None = None

    def __post_init__(self) -> None:
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self.handler, name):
                object.__setattr__(self, name, getattr(self.handler, name))
        object.__setattr__(self, "__wrapped__", self.handler)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check a call's arguments (a JSON object) and convert them to the types of the function's
        annotations.

        Missing arguments are left to the function's own defaults. Raises ``ToolFailure`` that names each
        wrong argument, its value, and what is expected."""
        return self.signature.bind(arguments)


@overload
def tool(function: Handler, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    concurrency: Concurrency = "serial",
    path_arguments: Sequence[str] = (),
    effect: Effect = "unsafe",
    timeout: float | None = None,
    max_result_chars: int | None = None,
    approval: Approval = "never",
    external: bool = False,
    note: str = "",
    hidden: Sequence[str] = (),
    writes_files: bool | None = None,
) -> Callable[[Handler], Tool]: ...
def tool(function: Handler | None = None, /, **options: Any) -> Tool | Callable[[Handler], Tool]:
    """Make a tool of a function, synchronous or asynchronous; used bare or with options.

    The schema comes from the signature, descriptions from the docstring (``Args:`` sections, ``:param x:`` or
    ``x: text``) or from ``Annotated[..., Field(description=...)]``. A parameter without annotation accepts
    any JSON.

    ``concurrency``: whether it may run beside other calls. ``path_arguments``: arguments that are paths; a
    parallel tool that has some runs beside others only if their paths are disjoint. ``effect``: whether a
    call may be repeated, for instance when a crash hid whether it ran: ``pure`` always, because it only
    reads; ``idempotent`` with the same key, because a repetition changes nothing more; ``unsafe`` never, it
    runs at most once. ``timeout`` in seconds and ``max_result_chars``: ``None`` for the settings' values.
    ``approval``: ``ask`` waits for a person. ``external``: its results come from outside and reach the model
    marked as untrusted data. ``note`` is appended to the description. ``hidden``: parameters with defaults
    that are not shown to the model, for values known only where the tool is made. ``writes_files``: it may
    change files of the working directory, so a checkpoint is made before a call; by default true for a tool
    with ``path_arguments`` that is not pure.

    A first parameter annotated ``RunContext`` or ``RunContext[Deps]`` is not shown to the model and receives
    the context of the turn.

    A parameter ``idempotency_key: str`` is not shown to the model. It receives the call's key, which is the
    same when the call is repeated, and empty outside a turn: pass it to a service that supports such keys.

    Raises ``ConfigError`` for an unusable option or signature.
    """
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise ConfigError("unknown option of @tool", unknown[0], near(unknown[0], _OPTIONS))
    if function is None:
        return lambda handler: _tool_of(handler, **options)
    return _tool_of(function, **options)


def as_tool(thing: object) -> Tool:
    """Return a ``Tool`` unchanged, or make one of a plain function with the default options. Raises
    ``ConfigError`` otherwise."""
    if isinstance(thing, Tool):
        return thing
    if not inspect.isroutine(thing):
        agent = callable(getattr(thing, "as_tool", None))
        allowed = "agent.as_tool(…)" if agent else "a function, or what @tool returns"
        raise ConfigError("not a tool", thing, allowed)
    return _tool_of(thing)


def _tool_of(
    handler: Handler,
    *,
    name: str | None = None,
    concurrency: str = "serial",
    path_arguments: Sequence[str] = (),
    effect: str = "unsafe",
    timeout: float | None = None,
    max_result_chars: int | None = None,
    approval: str = "never",
    external: bool = False,
    note: str = "",
    hidden: Sequence[str] = (),
    writes_files: bool | None = None,
) -> Tool:
    if not inspect.isroutine(handler):
        raise ConfigError(
            "@tool was put on something that is not a function", handler, "a function or a bound method"
        )
    name = name if name is not None else handler.__name__
    _check_options(name, concurrency, effect, timeout, max_result_chars, approval)
    paths = _names_of(f"path_arguments of tool {name!r}", path_arguments)
    unseen = _names_of(f"hidden of tool {name!r}", hidden)
    writes = bool(paths) and effect != "pure" if writes_files is None else writes_files
    options = (name, concurrency, paths, effect, timeout, max_result_chars, approval, note, unseen, writes)
    spec, signature = _read_once(handler, options) or _read(handler, *options)
    return Tool(spec, handler, inspect.iscoroutinefunction(handler), signature, external)


_OPTIONS = tuple(name for name in inspect.signature(_tool_of).parameters if name != "handler")


def _read_once(handler: Handler, options: tuple[Any, ...]) -> tuple[ToolSpec, Signature] | None:
    """Return ``_read``'s result, cached by function and options; ``None`` if it might differ next time."""
    function = getattr(handler, "__func__", handler)
    if not isinstance(function, types.FunctionType) or vars(function):
        # a signature or another function may override it
        return None
    specs = _MADE.setdefault(function, {})
    key = (*options, function.__doc__, handler is function)
    if key not in specs:
        specs[key] = _read(handler, *options)
    return specs[key]


def _read(
    handler: Handler,
    name: str,
    concurrency: Any,
    paths: tuple[str, ...],
    effect: Any,
    timeout: float | None,
    max_result_chars: int | None,
    approval: Any,
    note: str,
    hidden: tuple[str, ...],
    writes_files: bool,
) -> tuple[ToolSpec, Signature]:
    """Return the description for the model, and the signature. The caller has checked the options."""
    _check_kind(handler, name)
    names = [parameter.name for parameter in _safe_parameters(handler)]
    if (strange := undeclared_parameter(inspect.getdoc(handler), names)) is not None:
        raise ConfigError(
            f"the docstring of tool {name!r} describes a parameter that is not there",
            strange,
            near(strange, names) or "none: it has no parameters",
        )
    description, descriptions = describe(inspect.getdoc(handler), names)
    signature = signature_of(handler, name, descriptions)
    for path in paths:
        _one_of(
            f"path_arguments of tool {name!r}",
            path,
            [known for known in names if known not in (KEY, signature.context)],
        )
    schema = signature.schema()
    optional = [known for known in schema["properties"] if known not in schema.get("required", ())]
    for one in hidden:
        _one_of(f"hidden of tool {name!r}", one, optional)
    schema["properties"] = {key: value for key, value in schema["properties"].items() if key not in hidden}
    spec = ToolSpec(
        name=name,
        description=f"{description}\n\n{note}" if note else description,
        parameters=schema,
        concurrency=concurrency,
        effect=effect,
        path_arguments=paths,
        timeout=timeout,
        max_result_chars=max_result_chars,
        approval=approval,
        writes_files=writes_files,
    )
    return spec, signature


def _safe_parameters(handler: Handler) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return ()


def _check_options(
    name: object,
    concurrency: object,
    effect: object,
    timeout: object,
    max_result_chars: object,
    approval: object,
) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            "a tool's name cannot be used", name, "1 to 64 letters, digits, underscores and dashes"
        )
    _one_of(f"concurrency of tool {name!r}", concurrency, get_args(Concurrency))
    _one_of(f"effect of tool {name!r}", effect, get_args(Effect))
    _one_of(f"approval of tool {name!r}", approval, get_args(Approval))
    for option, value in (("timeout", timeout), ("max_result_chars", max_result_chars)):
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST
        if value is not None and not number:
            allowed = f"a number above 0 to {MOST:,}, or None"
            raise ConfigError(f"{option} of tool {name!r} cannot be used", value, allowed)


def _names_of(what: str, given: str | Sequence[str]) -> tuple[str, ...]:
    expect(what, given, Iterable, "names of parameters")
    return (given,) if isinstance(given, str) else tuple(map(str, given))


def _one_of(what: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{what} cannot be used", value, ", ".join(allowed) or "none: it has no parameters")


def _check_kind(handler: Handler, name: str) -> None:
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigError(f"tool {name!r} is a generator", handler, "a function that returns its result")
    first = next(iter(_safe_parameters(handler)), None)
    if first is not None and first.name in ("self", "cls") and "." in handler.__qualname__:
        raise ConfigError(f"tool {name!r} is a method without its object", handler, "tool(object.method)")


# Tools that come and go between turns.


class ToolSource(Protocol):
    """A group of tools that may differ between turns, such as those of other programs.

    The result of ``tools`` changes only in ``ready`` and ``find``, so that a turn keeps the tools that it
    began with."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its parts, whichever are available, so that a prompt stays the same."""

    def tools(self) -> Sequence[Tool]: ...

    async def ready(self, taken: Collection[str], interrupted: Interrupt) -> tuple[str, ...]:
        """Discover the available tools, within limits; names in ``taken`` may not be used. Return messages
        for people about missing ones."""

    async def find(self, name: str) -> Tool | None:
        """Return the tool with this name, for a turn that another process may have begun."""

    async def aclose(self) -> None:
        """Release the tools: end connections and processes."""
        ...
