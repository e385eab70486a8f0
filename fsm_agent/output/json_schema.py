"""``JsonSchema``: a JSON schema as the type of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.support.texts import one_line

MOST_PROBLEMS = 8


class JsonSchema:
    """A JSON schema (2020-12) as the type of an answer, which is plain data then: dicts, lists, texts,
    numbers. Called with a value, it returns it, or raises ``ValueError`` with what does not fit.

    Raises ``ConfigError`` for what is no JSON schema."""

    def __init__(self, schema: Mapping[str, Any], name: str = "answer") -> None:
        from jsonschema import Draft202012Validator
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
        self.schema, self.name, self.__name__ = dict(schema), name, name
        self._validator = Draft202012Validator(schema, registry=Registry())  # which fetches nothing

    def __call__(self, value: Any) -> Any:
        found = list(islice(self._validator.iter_errors(value), MOST_PROBLEMS))
        if found:
            lines = [
                f"- {error.json_path.removeprefix('$.')}: {one_line(error.message, 200)}" for error in found
            ]
            raise ValueError("\n".join(lines))
        return value
