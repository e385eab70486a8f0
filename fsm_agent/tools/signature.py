"""The signature of a handler: its arguments as a pydantic model (their JSON schema, and checked keyword
arguments), and the ``RunContext`` of the calling turn."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import json
import logging
import threading
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError
from typing_extensions import TypeVar

from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent.tools.result import ToolFailure

# ----------------------------------------------------------------------------------------------------
# The context of the calling turn, for a function whose first parameter is annotated ``RunContext``.


Deps = TypeVar("Deps", default=Any)
LONGEST = 300
"""Maximum characters of a line of progress."""


@dataclass(frozen=True, slots=True)
class RunContext(Generic[Deps]):
    """The turn's context for a tool or a hook. ``deps``: the object with which the turn was started, or
    resumed; never stored. ``task_id`` and ``call_id``: of the turn, and of this call. ``idempotency_key``:
    the same for each repetition of this call. ``attempt``: for a tool 2 if its process ended during the
    previous attempt, else 1; for a hook the number of the request for the same purpose. ``iterations_left``:
    of the turn, ``None`` if they are not counted. ``tools``: names that the model may call now."""

    deps: Deps
    session_id: str
    turn_id: str
    task_id: str
    tool: str = ""
    call_id: str = ""
    idempotency_key: str = ""
    attempt: int = 1
    iterations_left: int | None = None
    tools: tuple[str, ...] = ()
    tell: Callable[[str, str], None] = field(default=lambda name, text: None, repr=False, compare=False)
    loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False, compare=False)

    def progress(self, text: str) -> None:
        """Report the progress of the call in one line to the ``tool_progress`` callback and to ``events()``;
        callable from any thread, without waiting."""
        line = one_line(mask(text), LONGEST)
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.tell, self.tool, line, context=contextvars.copy_context())

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger ``fsm_agent.tool.<name>``, whose records contain the ids of the call."""
        ids = {"session_id": self.session_id, "turn_id": self.turn_id, "call_id": self.call_id}
        return logging.LoggerAdapter(logging.getLogger(f"fsm_agent.tool.{self.tool}"), ids)


def deps_of(hint: Any) -> Any:
    """Return the type of ``deps`` in an annotation, ``Any`` if unspecified; ``None`` if the annotation is not
    a ``RunContext``."""
    if hint is RunContext:
        return Any
    if typing.get_origin(hint) is not RunContext:
        return None
    [wanted] = typing.get_args(hint)
    return wanted


def must_have(deps: Any) -> bool:
    """Return whether a tool with this type of ``deps`` requires them."""
    if typing.get_origin(deps) in (typing.Union, types.UnionType):
        return type(None) not in typing.get_args(deps)
    return deps not in (None, type(None), Any, object) and not isinstance(deps, typing.TypeVar)


# The cooperative stop signal of a running tool.


TOOL_STOPPED: ContextVar[threading.Event | None] = ContextVar("fsm_agent_tool_stopped", default=None)
"""Signals the tool that runs in this context to stop."""


def cancelled() -> bool:
    """Return whether the running tool should stop: after the user's interrupt, and after the tool's time
    limit.

    For synchronous handlers, which cannot be stopped from outside; asynchronous ones are also cancelled by
    asyncio. False outside a tool."""
    signal = TOOL_STOPPED.get()
    return signal is not None and signal.is_set()


# ----------------------------------------------------------------------------------------------------
# The arguments of a handler.


_CONTEXTS = ("ctx", "run_context")
"""Names of a parameter that is probably meant to receive the context."""
KEY = "idempotency_key"
"""The model does not see a parameter of this name: the runner fills it."""
MAX_PROBLEMS = 8
"""Maximum problems listed in one error result; more would only repeat the schema."""

MOST_KNOWN = 512
"""Maximum cached signatures: built-in tools are made again for each agent, and a model takes half a
millisecond."""

_KNOWN: dict[Hashable, Signature] = {}
UNUSABLE = (
    PydanticUserError, PydanticUndefinedAnnotation, TypeError, ValueError, NameError, AttributeError,
    SyntaxError, IndexError,
)  # fmt: skip
"""Errors that pydantic raises for a type that it cannot read or describe."""
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "dependentSchemas")
_DATA = ("default", "const", "enum", "examples")


class _Quiet(GenerateJsonSchema):
    """Omits a default that is not a JSON value from the schema, without a warning."""

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        try:
            json.dumps(encoded, allow_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from None
        return encoded

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a tool. Fields of ``model`` are numbered and have the argument's name as alias, so
    that an argument may be called ``json`` or ``copy``, which pydantic reserves. ``always``: arguments whose
    default only pydantic knows; ``keyed``: the handler takes the call's idempotency key; ``context``: the
    parameter that receives a ``RunContext``, if any, and ``deps`` the type that it names."""

    tool: str
    model: type[BaseModel]
    fields: Mapping[str, str]
    always: frozenset[str]
    keyed: bool
    written: Mapping[str, Any]
    context: str = ""
    deps: Any = None

    def schema(self) -> dict[str, Any]:
        """Return a copy of the JSON schema object of the arguments, without titles."""
        return copy.deepcopy(dict(self.written))

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked and converted keyword arguments. Raises ``ToolFailure`` that tells the model
        what to correct."""
        try:
            values = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolFailure(self.complaint(error)) from None
        given = values.model_fields_set
        return {
            name: getattr(values, field)
            for field, name in self.fields.items()
            if field in given or name in self.always
        }

    def refuse_without(self, deps: object, what: str) -> None:
        """Raise ``ConfigError`` if the function (``what``: its kind) needs ``deps`` and has none."""
        if deps is None and self.context and must_have(self.deps):
            wanted = getattr(self.deps, "__name__", self.deps)
            raise ConfigError(f"{what} {self.tool!r} needs deps", None, f"deps= of type {wanted}")

    def complaint(self, error: ValidationError) -> str:
        """Return the model's error message about invalid arguments."""
        allowed = ", ".join(self.fields.values()) or "none"
        head = f"Invalid arguments for {self.tool}; nothing was run."
        return "\n".join([head, *problems_in(error, "arguments", f"no such argument; allowed: {allowed}")])


def problems_in(error: ValidationError, whole: str, unknown: str) -> list[str]:
    """Describe each problem in one line. ``whole``: the name of the value; ``unknown``: the words for an
    unknown name on its first level."""
    problems = error.errors(include_url=False, include_context=False)
    lines = [f"- {_problem(problem, whole, unknown)}" for problem in problems[:MAX_PROBLEMS]]
    left = len(problems) - MAX_PROBLEMS
    return [*lines, f"- and {left} more"] if left > 0 else lines


def _problem(problem: Mapping[str, Any], whole: str, unknown: str) -> str:
    where = ".".join(str(step) for step in problem["loc"]) or whole
    if problem["type"] == "missing":
        return f"{where}: missing, and required"
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        return f"{where}: {unknown}"
    return f"{where}: {problem['msg']}; given: {one_line(repr(problem['input']), 120)}"


def schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the JSON schema of a type, without titles. Raises one of ``UNUSABLE`` for a type without one."""
    schema = _without_titles(adapter.json_schema(schema_generator=_Quiet))
    assert isinstance(schema, dict)
    return schema


def signature_of(function: Callable[..., Any], tool: str, descriptions: Mapping[str, str]) -> Signature:
    """Read the parameters of ``function``. A parameter without annotation accepts any JSON value;
    ``idempotency_key`` is left out.

    Raises ``ConfigError`` for a signature that a JSON object cannot fill.
    """
    everything = _parameters(function, tool)
    hints = _hints(function, everything, tool)
    context, deps = _context(everything, hints, tool)
    parameters = [parameter for parameter in everything if parameter.name not in (KEY, context)]
    keyed = KEY in {parameter.name for parameter in everything}
    if keyed and hints.get(KEY, str) is not str:
        raise ConfigError(f"{KEY} of tool {tool!r} has the wrong type", str(hints[KEY]), "str")
    key = _likeness(tool, everything, hints, descriptions)
    if key is not None and key in _KNOWN:
        return _KNOWN[key]
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        annotation = _annotation(parameter, hints.get(parameter.name, Any), descriptions.get(parameter.name))
        bare = parameter.default is inspect.Parameter.empty or isinstance(parameter.default, FieldInfo)
        fields[f"p{number}"] = annotation if bare else (annotation, parameter.default)
    names = dict(zip(fields, (parameter.name for parameter in parameters), strict=True))
    try:
        model = create_model(f"{tool}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        own = {
            names[f]
            for f, info in model.model_fields.items()
            if not isinstance(fields[f], tuple) and not info.is_required()
        }
        signature = Signature(tool, model, names, frozenset(own), keyed, _schema(model), context, deps)
    except UNUSABLE as error:
        raise _unusable(tool, parameters, hints, error) from error
    if key is not None and len(_KNOWN) < MOST_KNOWN:
        _KNOWN[key] = signature
    return signature


def _context(parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any], tool: str) -> tuple[str, Any]:
    """Return the name of the context parameter, empty without one, and the type of its deps."""
    found = [p.name for p in parameters if deps_of(hints.get(p.name)) is not None]
    if not found:
        if parameters and parameters[0].name in _CONTEXTS and parameters[0].name not in hints:
            raise ConfigError(
                f"the first parameter of tool {tool!r} has no type",
                parameters[0].name,
                f"{parameters[0].name}: RunContext for what a tool can know of its turn, else the type of an"
                " argument that the model gives",
            )
        return "", None
    if found != [parameters[0].name]:
        raise ConfigError(
            f"tool {tool!r} has a RunContext in the wrong place", found[-1], "the first parameter"
        )
    return found[0], deps_of(hints[found[0]])


def _likeness(
    tool: str,
    parameters: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    descriptions: Mapping[str, str],
) -> Hashable:
    """Return a key that is equal for functions with the same signature; ``None`` if it is not hashable."""
    parts = tuple(
        (p.name, p.kind, hints.get(p.name), type(p.default), repr(p.default), p.default) for p in parameters
    )
    key = (tool, parts, tuple(sorted(descriptions.items())))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = schema_of(TypeAdapter(model))
    schema.setdefault("properties", {})
    return schema


def _parameters(function: Callable[..., Any], tool: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigError(
            f"tool {tool!r} has no readable signature", function, "a plain Python function"
        ) from None
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"tool {tool!r} has a parameter that yields no schema",
                str(parameter)
                + (" (positional only)" if parameter.kind is parameter.POSITIONAL_ONLY else ""),
                "named parameters that can be passed by keyword",
            )
    return parameters


def _hints(function: Callable[..., Any], parameters: list[inspect.Parameter], tool: str) -> dict[str, Any]:
    """Return the evaluated annotations of the parameters; the return annotation is not needed and may be
    unresolvable."""
    source = inspect.unwrap(getattr(function, "__func__", function))

    def probe() -> None: ...

    probe.__annotations__ = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    try:
        return typing.get_type_hints(probe, globalns=getattr(source, "__globals__", {}), include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise ConfigError(
            f"an annotation of tool {tool!r} cannot be resolved",
            str(error),
            "types that are visible in its module",
        ) from error


def _annotation(parameter: inspect.Parameter, hint: Any, description: str | None) -> Any:
    """Return the annotation with its alias; a description in the annotation wins over the docstring's."""
    own = [Field(description=description)] if description else []
    default = [parameter.default] if isinstance(parameter.default, FieldInfo) else []
    if typing.get_origin(hint) is Annotated:
        hint, *metadata = typing.get_args(hint)
    else:
        metadata = []
    return Annotated[
        (hint, *own, *metadata, *default, Field(alias=parameter.name, validation_alias=parameter.name))
    ]


def _unusable(
    tool: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any], error: BaseException
) -> ConfigError:
    allowed = "types that pydantic can describe in JSON schema"
    for parameter in parameters:
        try:
            TypeAdapter(hints.get(parameter.name, Any)).json_schema(schema_generator=_Quiet)
        except UNUSABLE:
            return ConfigError(
                f"tool {tool!r} has a parameter that yields no schema", str(parameter), allowed
            )
    return ConfigError(
        f"tool {tool!r} has a signature that yields no schema", one_line(str(error), 200), allowed
    )


def _without_titles(schema: Any) -> Any:
    """Return a schema without ``title`` keywords; a property named ``title`` stays."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned: dict[str, Any] = {}
    for key, part in schema.items():
        if key in _SCHEMA_MAPS and isinstance(part, dict):
            cleaned[key] = {name: _without_titles(inner) for name, inner in part.items()}
        elif key in _DATA:
            cleaned[key] = part
        elif key != "title":
            cleaned[key] = _without_titles(part)
    return cleaned
