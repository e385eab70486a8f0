"""Cases and their sources: recorded turns, the datasets of ``inspect-ai`` and ``pydantic-evals``, Python."""

# Both formats are read and written without their libraries: they are a few fields of JSON, and either library
# would bring in a second agent framework. (Why: docs/decisions.md.)

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fsm_agent.conversation.messages import Message
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.rewind import position_of
from fsm_agent.support.installation import importing

FORMATS = "a .jsonl or .json file of inspect-ai samples, a .json or .yaml dataset of pydantic-evals"
SOURCE = "eval"
"""Source of the sessions of evaluations; their turns are never cases."""
TOOLS = "tools"
"""Metadata key for the names of the tools that the answer to a case should call, in order."""
_SAMPLE = {"id", "input", "target", "metadata"}
_CASE = {"name", "inputs", "expected_output", "metadata"}


@dataclass(frozen=True, slots=True)
class Case:
    """One question. ``expected``: the right answer, or a list of right answers; ``None`` if no scorer needs
    one. ``history``: the messages before the question, as mappings. ``metadata``: JSON values for scorers and
    readers; its ``tools`` are the names of the tools to call."""

    id: str
    input: str
    expected: Any = None
    history: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A digest of the question and history. It excludes the expected answer, whose change requires no new
        answer."""
        asked = json.dumps([self.input, list(self.history)], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(asked.encode("utf-8", "replace")).hexdigest()[:12]

    @property
    def tools(self) -> tuple[str, ...] | None:
        """The names of the tools to call, if given in the metadata."""
        named = self.metadata.get(TOOLS)
        return tuple(map(str, named)) if isinstance(named, list | tuple) else None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named list of cases. ``left_out``: parts of a foreign file that have no meaning here."""

    name: str
    cases: tuple[Case, ...]
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for case in self.cases:
            if case.id in seen:
                raise ConfigError(f"two cases of {self.name} have the same id", case.id, "an id for each")
            seen.add(case.id)


# Recorded turns


def cases_from_turns(store: Store, turns: Sequence[str], name: str = "recorded turns") -> Dataset:
    """Build cases from turns: the question, the messages before it, and as expectation the recorded answer
    and tools. Skip turns of evaluations, forks, children, and turns without an answer or with non-text
    content."""
    read = Turns(store.database)
    cases, dropped = [], 0
    for turn in turns:
        case = _case_from_turn(store, read, turn)
        cases += [] if case is None else [case]
        dropped += case is None
    left_out = (f"{dropped} turns of evaluations, without an answer, or with other content than text",)
    return Dataset(name, tuple(cases), left_out if dropped else ())


def _case_from_turn(store: Store, read: Turns, turn: str) -> Case | None:
    info, result = read.info(turn), read.result(turn) or {}
    source = store.database.select("SELECT source, kind FROM sessions WHERE id = ?", info.session)
    answer = result.get("final_response")
    if source[0][0] == SOURCE or source[0][1] == "child" or info.forked_at or not answer:
        return None
    position = position_of(store, turn, 0)
    asked, supplied = position.snapshot.get("user_content"), position.snapshot.get("supplied_history")
    before = [row for _, row in position.transcript] if supplied is None else map(Message.from_dict, supplied)
    rows = [row.to_dict() for row in before if row.role != "system" and row.wire]
    if not isinstance(asked, str) or any(not isinstance(row.get("content"), str | None) for row in rows):
        return None
    called = [one.name for visit in read.visits(turn).values() for one in visit if one.kind == "RunTool"]
    metadata = {TOOLS: called, "turn": turn, "exit": info.exit}
    return Case(turn, asked, answer, tuple(map(_plain, rows)), metadata)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the fields of a message that every provider knows."""
    kept = ("role", "content", "tool_calls", "tool_call_id", "name")
    return {name: row[name] for name in kept if row.get(name) is not None}


# Files


def read_cases(path: Path | str) -> Dataset:
    """Read a file of cases; nothing in it runs. Raises ``ConfigError`` for the first wrong part."""
    file = Path(path)
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the file of cases cannot be read ({error})", str(path), FORMATS) from None
    match file.suffix.lower():
        case ".jsonl":
            lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
            values = [_json(line, f"{path}: line {number}") for number, line in lines]
            return _samples(values, file)
        case ".json":
            value = _json(text, str(path))
            return _pydantic(value, file) if isinstance(value, dict) else _samples(value, file)
        case ".yaml" | ".yml":
            return _pydantic(_yaml(text, str(path)), file)
    raise ConfigError("the file of cases has an unknown format", str(path), FORMATS)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the cases are not valid JSON ({error})", where, FORMATS) from None


def _yaml(text: str, where: str) -> Any:
    with importing("evals", f"the YAML file {where} needs"):
        import yaml
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"the cases are not valid YAML ({why})", where, FORMATS) from None


def _samples(values: Any, file: Path) -> Dataset:
    """Parse samples of ``inspect-ai``: ``input``, ``target``, ``id``, ``metadata``."""
    if not isinstance(values, list):
        raise ConfigError("the file has no list of cases", str(file), FORMATS)
    make = partial(_make_case, file, "input", "id", "target")
    return Dataset(file.stem, *_each(values, make, _SAMPLE))


def _pydantic(value: Any, file: Path) -> Dataset:
    """Parse a dataset of ``pydantic-evals``: ``cases`` with ``inputs``, ``expected_output``, ``name``,
    ``metadata``."""
    cases = value.get("cases") if isinstance(value, dict) else None
    if not isinstance(cases, list):
        raise ConfigError("the dataset has no list of cases", str(file), '{"cases": [{"inputs": "…"}]}')
    make = partial(_make_case, file, "inputs", "name", "expected_output")
    found, left_out = _each(cases, make, _CASE)
    more = (name for name in ("evaluators", "report_evaluators") if value.get(name))
    return Dataset(str(value.get("name") or file.stem), found, tuple(dict.fromkeys((*left_out, *more))))


def _each(values: Sequence[Any], make: Any, known: set[str]) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    cases = tuple(make(number, value) for number, value in enumerate(values, 1))
    left = {name: None for value in values for name in value if name not in known and value[name]}
    return cases, tuple(left)


def _make_case(file: Path, asked: str, name: str, expected: str, number: int, value: Any) -> Case:
    where = f"{file}: case {number}"
    if not isinstance(value, dict):
        raise ConfigError("a case is not an object", where, f'{{"{asked}": "…"}}')
    history, text = _question(value.get(asked), where, asked)
    given = value.get("metadata")
    if not isinstance(given, dict | None):
        raise ConfigError("metadata of a case is not an object", where, '{"metadata": {…}}')
    found, right = value.get(name), value.get(expected)
    return Case(
        str(number if found is None else found), text, None if right == "" else right, history, given or {}
    )


def _question(given: Any, where: str, name: str) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Return (messages before the question, question). Raises ``ConfigError``."""
    allowed = "a text, or messages of which the last one is the user's"
    if isinstance(given, str) and given.strip():
        return (), given
    rows = given if isinstance(given, list) else []
    if not rows or not all(isinstance(row, dict) and isinstance(row.get("role"), str) for row in rows):
        raise ConfigError(f"a case has no usable {name}", where, allowed)
    last = rows[-1]
    if last["role"] != "user" or not isinstance(last.get("content"), str) or not last["content"].strip():
        raise ConfigError(f"{name} of a case does not end with a question", where, allowed)
    return tuple(_whole(_plain(row)) for row in rows[:-1]), last["content"]


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    """Convert the tool calls of a message to the format of chat completions; ``inspect-ai`` writes less."""
    calls = row.get("tool_calls")
    if not isinstance(calls, list):
        return row
    return {**row, "tool_calls": [_whole_call(one) if isinstance(one, dict) else one for one in calls]}


def _whole_call(call: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(call.get("function"), str):
        return call
    arguments = json.dumps(call.get("arguments") or {}, ensure_ascii=False, separators=(",", ":"))
    function = {"name": call["function"], "arguments": arguments}
    return {"id": call.get("id", ""), "type": "function", "function": function}


def write_cases(dataset: Dataset, path: Path | str) -> None:
    """Write cases for ``inspect-ai`` (``.jsonl``) or ``pydantic-evals`` (``.json``, ``.yaml``), depending on
    the file's suffix. Raises ``ConfigError``."""
    file = Path(path)
    match file.suffix.lower():
        case ".jsonl":
            lines = [json.dumps(one, ensure_ascii=False) for one in map(_as_sample, dataset.cases)]
            text = "".join(f"{line}\n" for line in lines)
        case ".json":
            text = json.dumps(_as_dataset(dataset), ensure_ascii=False, indent=2) + "\n"
        case ".yaml" | ".yml":
            text = _as_yaml(_as_dataset(dataset), str(path))
        case _:
            raise ConfigError("cases cannot be written in this format", str(path), FORMATS)
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"the cases cannot be written ({error.strerror})", str(path), "a file") from None


def _as_yaml(value: Any, where: str) -> str:
    with importing("evals", f"the YAML file {where} needs"):
        import yaml
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def _question_of(case: Case) -> Any:
    if not case.history:
        return case.input
    return [*map(dict, case.history), {"role": "user", "content": case.input}]


def _as_sample(case: Case) -> dict[str, Any]:
    """Build a sample of ``inspect-ai``, where targets are texts and each message has content."""
    expected = case.expected
    asked = _question_of(case)
    if isinstance(asked, list):
        asked = [{**row, "content": row.get("content") or ""} for row in asked]
        asked = [_for_inspect(row) for row in asked]
    target = "" if expected is None else _texts(expected)
    return {"id": case.id, "input": asked, "target": target, "metadata": dict(case.metadata)}


def _for_inspect(row: dict[str, Any]) -> dict[str, Any]:
    """Convert tool calls to the format of ``inspect-ai``: the arguments are an object."""
    if not (calls := row.get("tool_calls")):
        return row
    return {**row, "tool_calls": list(_flat_calls(calls))}


def _flat_calls(calls: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for call in calls:
        function = call.get("function", {})
        arguments = function.get("arguments") or "{}"
        try:
            read = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            read = {}
        yield {"id": call.get("id", ""), "function": function.get("name", ""), "arguments": read}


def _texts(expected: Any) -> Any:
    if isinstance(expected, list):
        return [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in expected]
    return expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)


def _as_dataset(dataset: Dataset) -> dict[str, Any]:
    cases = [
        {
            "name": case.id,
            "inputs": _question_of(case),
            "metadata": dict(case.metadata) or None,
            "expected_output": case.expected,
        }
        for case in dataset.cases
    ]
    return {"name": dataset.name, "cases": cases, "evaluators": []}
