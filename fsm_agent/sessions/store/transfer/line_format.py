"""The lines of an exported session or turn: one JSON object each, checked when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fsm_agent.sessions.store.journal.recording import Origin
from fsm_agent.sessions.store.sealed import dumps

FORMAT = 1


def _encodable(text: str) -> str:
    """Half a surrogate pair is no text that a database takes; inside of JSON values it is escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("this text has half a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Id = Annotated[Text, Field(min_length=1, max_length=500)]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Seconds = float
Pair = Annotated[tuple[str, bool], Field(strict=False)]
Change = Annotated[tuple[str, int, int], Field(strict=False)]
"""JSON has no tuples."""
Json = dict[str, Any]


class Line(BaseModel):
    """One row of a table. Fields are named like columns, but for ``type``, which is the column ``kind``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    table: ClassVar[str] = ""
    order: ClassVar[str] = ""

    @classmethod
    def columns(cls) -> list[str]:
        return ["kind" if name == "type" else name for name in cls.model_fields if name != "kind"]

    def values(self) -> Iterator[Any]:
        """In the order of ``columns``, as a database takes them."""
        for name in type(self).model_fields:
            if name != "kind":
                value = getattr(self, name)
                yield dumps(value) if isinstance(value, dict | list) else int(value) if isinstance(value, bool) else value


class Header(Line):
    kind: Literal["fsm-agent"] = "fsm-agent"
    format: Literal[1] = 1
    of: Literal["session", "turn"]
    id: Id
    masked: bool


class End(Line):
    """The last line: how many stand before it, so that a file that was cut is noticed."""

    kind: Literal["end"] = "end"
    lines: Whole


class SessionLine(Line):
    table: ClassVar[str] = "sessions"
    order: ClassVar[str] = "created, id"

    kind: Literal["session"] = "session"
    id: Id
    title: Text
    type: Literal["root", "compression", "fork", "child"]
    parent: Id | None
    successor: Id | None
    source: Text
    model: Text
    created: Seconds
    touched: Seconds
    ended: Seconds | None
    end_reason: Text
    version: Whole
    turns: Whole
    prompts: Json
    meter: Json
    guard: Json
    usage: Json
    extra: Json
    exit: Text = ""


class TranscriptLine(Line):
    table: ClassVar[str] = "transcripts"
    order: ClassVar[str] = "session, version"

    kind: Literal["transcript"] = "transcript"
    session: Id
    version: Whole
    numbers: list[Whole]


class TurnLine(Line):
    table: ClassVar[str] = "turns"
    order: ClassVar[str] = "began, id"

    kind: Literal["turn"] = "turn"
    id: Id
    session: Id
    parent: Id | None
    forked_at: Whole | None
    asked: Text
    state: Text
    seq: Whole
    epoch: Whole
    digest: Text
    settings: Json
    start: Json
    began: Seconds
    moved: Seconds
    ended: Seconds | None
    exit: Text | None
    outcome: Text | None
    undone: Seconds | None
    result: Json | None
    final: dict[str, Json] | None
    answers: Json | None = None
    table_name: Text = "turn"


class MessageLine(Line):
    table: ClassVar[str] = "messages"
    order: ClassVar[str] = "id"

    kind: Literal["message"] = "message"
    session: Id
    number: Whole
    version: Annotated[int, Field(ge=-1, le=2**53)]
    turn: Id | None
    at: Seconds
    role: Literal["system", "user", "assistant", "tool"]
    active: bool
    body: Json


class MoveLine(Line):
    table: ClassVar[str] = "transitions"
    order: ClassVar[str] = "turn, seq"

    kind: Literal["move"] = "move"
    turn: Id
    seq: Whole
    source: Text
    event: Text
    dest: Text
    row: Text
    exit: Text | None
    guards: list[Pair]
    changes: list[Change]
    seconds: Seconds
    at: Seconds
    delta: dict[str, Json]


class EffectLine(Line):
    table: ClassVar[str] = "effects"
    order: ClassVar[str] = "turn, seq, ordinal, place"

    kind: Literal["effect"] = "effect"
    turn: Id
    seq: Whole
    ordinal: Whole
    place: Whole
    state: Text
    type: Text
    name: Text
    safety: Text
    key: Text
    status: Literal["in_flight", "done", "unknown"]
    request: Json
    reply: Json | None
    at: Seconds
    seconds: Seconds | None
    origin: Origin = ""

    @classmethod
    def columns(cls) -> list[str]:
        return ["class" if name == "safety" else name for name in super().columns()]


class UsageLine(Line):
    table: ClassVar[str] = "usage"
    order: ClassVar[str] = "id"

    kind: Literal["usage"] = "usage"
    session: Id
    turn: Id
    at: Seconds
    provider: Text
    model: Text
    purpose: Text
    input: Whole
    output: Whole
    cache_read: Whole
    cache_write: Whole
    reasoning: Whole
    cost: Seconds | None
    cost_status: Literal["estimated", "included", "unknown"]


KINDS: Mapping[str, type[Line]] = {
    "session": SessionLine, "transcript": TranscriptLine, "turn": TurnLine, "message": MessageLine, "move": MoveLine,
    "effect": EffectLine, "usage": UsageLine,
}  # fmt: skip
"""In the order in which they are written."""
