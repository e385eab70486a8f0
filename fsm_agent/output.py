"""Typed answers: what ``Agent(output_type=…)`` and ``run_conversation(…, output_type=…)`` accept, and how a
model's text becomes a value.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict

from fsm_agent.conversation.arguments import DamagedError, read_leniently
from fsm_agent.conversation.effects import FINAL, NOTHING, OutputMode, OutputSpec, ToolSpec
from fsm_agent.errors import ConfigError
from fsm_agent.support.texts import STRICT_JSON, is_regular, json_of, occurs, one_line, parse_json
from fsm_agent.tools import Tool, ToolFailure, as_tool
from fsm_agent.tools.result import text_of_error
from fsm_agent.tools.signature import UNUSABLE, problems_in, schema_of

__all__ = [
    "JsonSchema",
    "OutputType",
    "ValidOutput",
]


# ----------------------------------------------------------------------------------------------------
# ``JsonSchema``: a JSON schema as the type of an answer.


MOST_PROBLEMS = 8


class JsonSchema:
    """A JSON schema (2020-12) as the type of an answer, whose values are plain data: dicts, lists, texts,
    numbers. Called with a value, it returns it, or raises ``ValueError`` with the violations.

    Raises ``ConfigError`` for an invalid schema."""

    def __init__(self, schema: Mapping[str, Any], name: str = "answer") -> None:
        from jsonschema import Draft202012Validator, validators
        from jsonschema.exceptions import SchemaError
        from referencing import Registry

        if not isinstance(schema, Mapping):
            raise ConfigError(
                "not a JSON schema", schema, 'an object such as {"type": "object", "properties": {…}}'
            )
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            why = one_line(error.message, 200)
            raise ConfigError(f"not a JSON schema ({error.json_path})", why, "JSON schema 2020-12") from None
        except RecursionError:
            raise ConfigError(
                "the schema is nested too deeply", None, "$defs and $ref for its parts"
            ) from None
        self.schema, self.name, self.__name__ = dict(schema), name, name
        quick = validators.extend(Draft202012Validator, {"pattern": _check_pattern})
        self._validator = quick(schema, registry=Registry())  # an empty registry fetches nothing

    def __call__(self, value: Any) -> Any:
        try:
            found = list(islice(self._validator.iter_errors(value), MOST_PROBLEMS))
        except RecursionError:
            raise ValueError(
                "- the value is nested too deeply, or the schema refers to itself alone"
            ) from None
        if found:
            lines = [
                f"- {error.json_path.removeprefix('$.')}: {one_line(error.message, 200)}" for error in found
            ]
            raise ValueError("\n".join(lines))
        return value


def _check_pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    """Check ``pattern``, in linear time if it needs no backtracking."""
    from jsonschema.exceptions import ValidationError as Mismatch

    if isinstance(value, str):
        found = occurs(pattern, value) if is_regular(pattern) else re.search(pattern, value) is not None
        if not found:
            yield Mismatch(f"{value!r} does not match {pattern!r}")


# ----------------------------------------------------------------------------------------------------
# Finding the JSON in a model's text.


_FENCE = re.compile(r"^[ \t]*```[\w+-]*[ \t]*\r?\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


def dump(value: Any) -> str:
    """Return the value as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def json_in(text: str) -> tuple[str, Any] | None:
    """Return (the JSON that the text is, or the last in one of its fences; its value), ``None`` for a text
    without any. Repairs the slips that are tolerated in tool calls."""
    for part in _parts(text):
        try:
            return part, json_of(part, STRICT_JSON)
        except ValueError:
            pass
    for part in _parts(text):
        try:
            value, whole = read_leniently(part)
            if whole:
                return dump(parse_json(value)), value
        except (DamagedError, ValueError):
            pass
    return None


def _parts(text: str) -> Iterator[str]:
    yield text.strip().removeprefix("\ufeff").strip()
    yield from (part.strip() for part in reversed(_FENCE.findall(text)))


# ----------------------------------------------------------------------------------------------------
# ``OutputType``: converts the text of a model's answer to a value of a type.


Out = TypeVar("Out")
RESULT = "result"
"""The member that holds an answer which is not an object: providers require objects."""
NO_JSON = "it is not JSON."
NOT_FITTING = "it does not fit.\n"
TAKES = (
    "Takes the final answer as its arguments. Call it once, alone, when all other calls have their results."
)
ALLOWED = (
    "a type that pydantic can describe in JSON schema, a function with annotated parameters, or JsonSchema"
)
_BEGUN = f'{{"{RESULT}":'
_WRAPPED = re.compile(rf'\{{\s*"{RESULT}"\s*:')
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]+")

Perform = Callable[[Tool, Mapping[str, Any]], Awaitable[Any]]
"""Runs an output function with its arguments. Raises ``ToolFailure`` with words for the model."""


@dataclass(frozen=True, slots=True)
class ValidOutput(Generic[Out]):
    """A valid answer. ``text``: its JSON, as stored and read again."""

    value: Out
    text: str


class OutputType(Generic[Out]):
    """The type of an answer: a pydantic model, a dataclass, a ``TypedDict``, any other type or union that
    pydantic supports, a function (the model fills in its parameters, and its result is the answer), or a
    ``JsonSchema``.

    ``spec``: the specification for the turn, in which an answer that is not an object is the member
    ``result`` of one. Raises ``ConfigError`` for a type without a JSON schema."""

    def __init__(self, wanted: Any, mode: OutputMode | None = None) -> None:
        self.name = _NO_NAME.sub("_", str(getattr(wanted, "__name__", "") or "answer"))[:64]
        self._tool = as_tool(wanted) if inspect.isroutine(wanted) or isinstance(wanted, Tool) else None
        self._data: JsonSchema | None = None
        self._adapter: TypeAdapter[Any] | None = None
        self._wrapped = False
        self.spec = OutputSpec(self.name, self._schema(wanted), mode, self._wrapped)

    @classmethod
    def again(cls, spec: OutputSpec) -> OutputType[Any]:
        """Restore a type from a specification: it accepts the same answers, and values are plain data."""
        kind = cls(JsonSchema(spec.schema, spec.name), spec.mode)
        kind._wrapped, kind.spec = spec.wrapped, spec
        return kind

    @property
    def final_tool(self) -> ToolSpec:
        """The tool whose arguments are the answer, for models that answer through a tool."""
        return ToolSpec(FINAL, TAKES, self.spec.schema, concurrency="parallel", effect="pure")

    def refuse_without(self, deps: object) -> None:
        """Raise ``ConfigError`` if the function needs ``deps`` and there are none."""
        if self._tool is not None:
            self._tool.signature.refuse_without(deps, "output function")

    def _schema(self, wanted: Any) -> Mapping[str, Any]:
        if self._tool is not None:
            return self._tool.spec.parameters
        if isinstance(wanted, JsonSchema):
            self._wrapped = wanted.schema.get("type") != "object"
            self._data = JsonSchema(_as_member(wanted.schema), wanted.name) if self._wrapped else wanted
            return self._data.schema
        if isinstance(wanted, Mapping):
            raise ConfigError(
                "output_type is a mapping", wanted, "JsonSchema({…}) for a JSON schema, or a type"
            )
        try:
            self._adapter = TypeAdapter(wanted)
            schema = schema_of(self._adapter)
            self._wrapped = not _is_object(schema)
            if self._wrapped:
                self._adapter = TypeAdapter(TypedDict("Answer", {RESULT: wanted}))  # type: ignore[operator]
                schema = schema_of(self._adapter)
            root = schema.get("$defs", {}).get(_own_name(schema), {})  # providers require an object there
            schema = {key: value for key, value in {**root, **schema}.items() if key != "$ref"}
        except UNUSABLE as error:
            why = one_line(str(error).partition("\n")[0].partition(". ")[0].rstrip("."), 200)
            raise ConfigError(f"output_type yields no schema ({why})", wanted, ALLOWED) from None
        return schema

    def read(self, text: str) -> ValidOutput[Any]:
        """Return the value in an answer; for a function its validated arguments. Raises ``ToolFailure`` with
        a message for the model if the answer is not valid."""
        problem: ToolFailure | None = None
        for document, value in self._documents(text):
            try:
                return ValidOutput(self._value(document), value)
            except ToolFailure as error:
                problem = problem or error
        raise problem or ToolFailure(NO_JSON)

    async def finish(self, read: ValidOutput[Any], perform: Perform) -> ValidOutput[Out]:
        """Return the final answer: the function's result, if there is a function. Raises what ``perform``
        raises."""
        return read if self._tool is None else ValidOutput(await perform(self._tool, read.value), read.text)

    def _documents(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield (object to validate, answer in it) for every possible reading of the text."""
        found = json_in(text)
        if found is None:
            if self._wrapped and text.strip():  # plain text may be the answer itself, if the type allows it
                yield dump({RESULT: text.strip()}), dump(text.strip())
            return
        written, value = found
        if not self._wrapped:
            yield written, written
            return
        if isinstance(value, dict) and list(value) == [RESULT]:
            yield written, dump(value[RESULT])
        yield f'{{"{RESULT}": {written}}}', written

    def _value(self, document: str) -> Any:
        try:
            if self._adapter is not None:
                value = self._adapter.validate_json(document)
            else:
                value = from_json(document, allow_inf_nan=False)
                if self._tool is not None:
                    return self._bind_arguments(value)
            if self._data is not None:
                value = self._data(value)
            return value[RESULT] if self._wrapped else value
        except ValidationError as error:
            raise ToolFailure(
                NOT_FITTING + "\n".join(problems_in(error, "the answer", "no such member"))
            ) from None
        except ToolFailure:
            raise
        except ValueError as error:
            raise ToolFailure(f"{NOT_FITTING}{error}") from None
        except Exception as error:  # a user's validator
            raise ToolFailure(NOT_FITTING + text_of_error(error)) from None

    def _bind_arguments(self, value: Any) -> dict[str, Any]:
        assert self._tool is not None
        if not isinstance(value, dict):
            raise ToolFailure("it has to be a JSON object with the arguments by name.")
        return self._tool.bind(value)

    def partial(self, text: str) -> Any:
        """Return the value of the beginning of an answer, ``NOTHING`` while that is not a value of the type;
        for a function its arguments so far, unvalidated. Never raises."""
        begin = text.find("{") if not self._wrapped else len(text) - len(text.lstrip())
        if begin < 0 or begin == len(text):
            return NOTHING
        document = text[begin:]
        if self._wrapped and _BEGUN.startswith("".join(document.split())):
            return NOTHING
        if self._wrapped and not _WRAPPED.match(document):
            document = f'{{"{RESULT}": {document}'
        try:
            if self._adapter is not None:
                value = self._adapter.validate_json(document, experimental_allow_partial="trailing-strings")
            else:
                value = from_json(document, allow_partial="trailing-strings")
            return value[RESULT] if self._wrapped else value
        except Exception:  # includes exceptions of a user's validator
            return NOTHING


def _is_object(schema: Mapping[str, Any]) -> bool:
    """Return whether all values are objects; the root of a recursive type is a reference."""
    root = schema.get("$defs", {}).get(_own_name(schema), schema)
    return bool(root.get("type") == "object")


def _own_name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).removeprefix("#/$defs/")


def _as_member(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object whose only member is a value of this schema."""
    defs = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in (*defs, "$schema", "$id")}
    return {"type": "object", "properties": {RESULT: inner}, "required": [RESULT], **defs}
