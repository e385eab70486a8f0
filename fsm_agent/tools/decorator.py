"""``@tool``: from a Python function to something a model can call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, overload

from fsm_agent.conversation.effects import Concurrency, ToolSpec
from fsm_agent.errors import ConfigError, near
from fsm_agent.request import Effect
from fsm_agent.tools.signature import KEY, Signature, signature_of

# ----------------------------------------------------------------------------------------------------
# Where the calls of a sandboxed tool run, and what that means for an approver.


LEAVES = "outside"
"""The argument by which a call asks to run outside the sandbox of its tool."""
OUTSIDE = "OUTSIDE the sandbox, with all your rights"


@dataclass(frozen=True, slots=True)
class Confinement:
    """``inside`` names the sandbox in words. ``free``: a call that stays in it needs no yes."""

    inside: str
    free: bool = False

    def left_by(self, arguments: Mapping[str, Any]) -> bool:
        """Say whether a call with these arguments runs outside. Whatever is not plainly a no counts as
        such."""
        return arguments.get(LEAVES, False) is not False

    def where(self, arguments: Mapping[str, Any]) -> str:
        """Return where the call runs, for the person who is asked."""
        return OUTSIDE if self.left_by(arguments) else self.inside

    def frees(self, arguments: Mapping[str, Any]) -> bool:
        """Say whether the sandbox is enough for the call to need no yes."""
        return self.free and not self.left_by(arguments)


# ----------------------------------------------------------------------------------------------------
# The decorator.


# Descriptions of parameters, taken out of a docstring.


_HEADER = re.compile(r"\s*(?:args|arguments|parameters|params)\s*:\s*$", re.IGNORECASE)
_SPHINX = re.compile(r"\s*:param\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:\s*(?P<text>.*)$")
_SPHINX_TYPE = re.compile(r"\s*:(?:type\s+\w+|rtype)\s*:")
_PLAIN = re.compile(r"\s*(?:[-*]\s+)?`{0,2}(?P<name>\w+)`{0,2}\s*(?:\([^()]*\)\s*)?:(?=\s|$)(?P<text>.*)$")


def describe(docstring: str | None, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """What the tool does, and what each of ``names`` means.

    Understands ``Args:`` sections (Google), ``:param name: text`` (Sphinx) and plain ``name: text`` lines; a
    deeper indented line continues the entry above it. Everything that describes no parameter stays in the
    first text."""
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
    """Return the first name that the docstring describes as a parameter, in an ``Args:`` section or after
    ``:param``, but that ``names`` lacks; ``None`` when all are there. Plain lines may be anything."""
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
"""What the chat-completions and messages APIs accept as a function's name."""

MOST = 1_000_000_000
"""Seconds, and characters, that an option of a tool may say: timers and arithmetic take more of neither."""
_MADE: weakref.WeakKeyDictionary[types.FunctionType, dict[Hashable, tuple[ToolSpec, Signature]]] = (
    weakref.WeakKeyDictionary()
)
"""What was read of a function, by the options: built-in tools are the same methods of other objects for every
agent, and reading one costs about a millisecond."""


@dataclass(frozen=True)
class Tool:
    """A function with all that a turn must know of it. Calling a ``Tool`` calls the function, unchecked.

    ``external``: its results are wrapped as untrusted data. ``closer`` releases what the tool holds
    (processes, connections) when its agent is closed; tools may share one, and it may be called twice.
    ``confinement``: the sandbox that its calls run in, if there is one."""

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
        """Check a call's arguments (a JSON object) and convert them to what the function's annotations ask
        for.

        Arguments that were not given are left to the function's own defaults. Raises ``ToolFailure`` that
        names each wrong argument, what was given and what is expected."""
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
    ``x: text``) or from ``Annotated[..., Field(description=...)]``. A parameter without annotation takes any
    JSON.

    ``concurrency``: may it run beside other calls. ``path_arguments``: its arguments that are paths; a
    parallel tool with any runs beside others only while their paths are disjoint. ``effect``: may it be
    repeated, for instance when a crash hid whether it ran: ``pure`` always, it only reads; ``idempotent``
    with the same key, the second time changes nothing more; ``unsafe`` never, it runs at most once.
    ``timeout`` in seconds and ``max_result_chars``: ``None`` for the settings' values. ``approval``: ``ask``
    waits for a person. ``external``: its results come from outside and reach the model marked as
    untrusted data. ``note`` is added to the description; parameters in ``hidden``, which have
    defaults, are not shown to the model: for what is known only where the tool is made. ``writes_files``: it
    may change files of the working directory, and a checkpoint is made before; by default a tool with
    ``path_arguments`` that is not pure.

    A first parameter that is annotated ``RunContext`` or ``RunContext[Deps]`` is not shown to the model and
    gets what the tool can know of its turn.

    A parameter ``idempotency_key: str`` is not shown to the model. It gets the call's key, the same when the
    call is repeated, and empty outside a turn: hand it on to a service that knows such keys.

    Raises ``ConfigError`` for an option or a signature that cannot be used.
    """
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise ConfigError("unknown option of @tool", unknown[0], near(unknown[0], _OPTIONS))
    if function is None:
        return lambda handler: _tool_of(handler, **options)
    return _tool_of(function, **options)


def as_tool(thing: object) -> Tool:
    """A ``Tool`` as it is, or a plain function made one with the default options. Raises ``ConfigError``
    otherwise."""
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
    paths = (path_arguments,) if isinstance(path_arguments, str) else tuple(map(str, path_arguments))
    unseen = (hidden,) if isinstance(hidden, str) else tuple(map(str, hidden))
    writes = bool(paths) and effect != "pure" if writes_files is None else writes_files
    options = (name, concurrency, paths, effect, timeout, max_result_chars, approval, note, unseen, writes)
    spec, signature = _read_once(handler, options) or _read(handler, *options)
    return Tool(spec, handler, inspect.iscoroutinefunction(handler), signature, external)


_OPTIONS = tuple(name for name in inspect.signature(_tool_of).parameters if name != "handler")


def _read_once(handler: Handler, options: tuple[Any, ...]) -> tuple[ToolSpec, Signature] | None:
    """``_read``, once for each function and way of using it; ``None`` for what may say something else the
    next time."""
    function = getattr(handler, "__func__", handler)
    if not isinstance(function, types.FunctionType) or vars(function):
        # a signature or a function put over it
        return None
    made = _MADE.setdefault(function, {})
    key = (*options, function.__doc__, handler is function)
    if key not in made:
        made[key] = _read(handler, *options)
    return made[key]


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
    """Return the function's description for the model, and the check of its calls. The options must have been
    checked before."""
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
    """A group of tools that is not the same for every turn: those of other programs, for instance.

    What ``tools`` answers changes only in ``ready`` and ``find``, so that a turn keeps the tools that it
    began with."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names for its parts that stay the same whichever of them are there; they keep a prompt from
        changing with them."""

    def tools(self) -> Sequence[Tool]: ...

    async def ready(self, taken: Collection[str], interrupted: asyncio.Event) -> tuple[str, ...]:
        """Look what is there, within limits; ``taken`` are names that it may not use. Lines for people about
        what is missing."""

    async def find(self, name: str) -> Tool | None:
        """A tool that a turn, begun by another process perhaps, knows by this name."""

    async def aclose(self) -> None:
        """Release the tools: end connections and processes."""
        ...
