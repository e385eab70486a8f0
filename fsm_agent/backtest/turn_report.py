"""One file about a turn, which a user sends and a maintainer replays: masked, bounded, and data alone.

It has what led to the end of the turn and no more: the recording is shrunk to the replies that its last row
needs, unless the whole is asked for. A reader trusts nothing in it. It is JSON that is checked field by
field, and playing it runs the states of this version, which perform no request."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fsm_agent.backtest.replay import LONGEST, Replay, recording_of, shrunk, text_of_test
from fsm_agent.composition.turn_wiring import DIGEST
from fsm_agent.errors import ConfigError, FsmAgentError
from fsm_agent.fsm.values import UNREADABLE
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import AGENT_TURN, TurnInfo, Turns
from fsm_agent.support.redaction import mask_json
from fsm_agent.support.texts import one_line
from fsm_agent.support.version import __version__

MOST_BYTES = 2_000_000
"""Of a file. A longer recording is left out of it, and the report says so."""
_MOST_WORDS = 2_000
"""Characters of an answer, an error, or a bug."""


class Recording(BaseModel):
    """What ``Replay`` is given, and what comes of it: ``moves`` as ids of rows, and the answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    message: Any
    history: list[dict[str, Any]]
    settings: dict[str, Any]
    opened: dict[str, Any]
    model: list[dict[str, Any]]
    tools: dict[str, list[dict[str, Any]]]
    others: dict[str, list[dict[str, Any]]]
    moves: list[str]
    answer: str | None


class TurnReport(BaseModel):
    """A turn: where it ran (``version`` of fsm-agent, ``python``, ``system``, ``table``: a digest), what it
    did (``moves`` as ids of rows), and how it ended. ``shrunk``: replies of the model that the recording no
    longer has. ``note``: why there is no recording."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    kind: Literal["fsm-agent report"] = "fsm-agent report"
    format: Literal[1] = 1
    version: str
    python: str
    system: str
    table: str
    turn: str
    asked: str
    moves: list[str]
    exit: str | None
    outcome: str | None
    answer: str | None
    error: str | None
    bugs: list[str]
    recording: Recording | None
    shrunk: int = 0
    note: str = ""

    def to_text(self) -> str:
        """Return it as the text of a file of at most ``MOST_BYTES``; a recording that does not fit is left
        out."""
        text = json.dumps(self.model_dump(), ensure_ascii=True, indent=1) + "\n"
        if len(text) <= MOST_BYTES:
            return text
        note = f"the recording has {len(text):,} bytes; a report has at most {MOST_BYTES:,}"
        return self.model_copy(update={"recording": None, "note": note}).to_text()

    def replay(self) -> str:
        """Play the recording with the states of this version. Empty when it comes out as the report says,
        else what differs."""
        if self.recording is None:
            return self.note or "it has no recording"
        given = self.recording.model_dump(exclude={"moves", "answer"})
        try:
            made = Replay(**given).run()
        except (AssertionError, FsmAgentError, *UNREADABLE) as error:
            return one_line(str(error) or type(error).__name__, 200)
        pairs = enumerate(zip(made.moves, self.recording.moves, strict=False), 1)
        if made.moves != self.recording.moves:
            short = min(len(made.moves), len(self.recording.moves))
            number = next((number for number, (now, was) in pairs if now != was), short + 1)
            ours, theirs = ([*side, "the end"][number - 1] for side in (made.moves, self.recording.moves))
            return one_line(f"move {number} is {ours} instead of {theirs}", 200)
        return "" if made.final_response == self.recording.answer else "the answer is another one"

    def as_test(self) -> str:
        """Return the text of a pytest test that plays the recording. Raises ``ConfigError`` without one."""
        if self.recording is None:
            raise ConfigError("the report has no recording", self.note or None)
        one = self.recording
        how = f"It ended with {self.exit} after {len(self.moves)} moves. Shrunk by {self.shrunk} replies."
        given = one.model_dump(exclude={"moves", "answer"})
        return text_of_test(self.turn, self.asked, how, given, one.moves, str(self.exit), one.answer)


def report_of(
    store: Store, turn_id: str, *, whole: bool = False, secrets: Collection[str] = ()
) -> TurnReport:
    """The report of a turn, ended or not. ``whole``: with every reply, not only those that its end needs;
    ``secrets`` are masked besides all that looks like a key."""
    turns = Turns(store.database)
    info, hidden = turns.info(turn_id), sorted(filter(None, secrets))
    result: dict[str, Any] = mask_json(turns.result(turn_id) or {}, hidden)
    moves = [step.row for step in turns.steps(turn_id)]
    recording, before, note = _recording(store, info, moves, whole, hidden)
    return TurnReport(
        version=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        table=info.digest,
        turn=info.id,
        asked=one_line(mask_json(info.asked, hidden), 80),
        moves=moves[-LONGEST:],
        exit=info.exit,
        outcome=info.outcome,
        answer=_cut(result.get("final_response")),
        error=_cut(result.get("error")),
        bugs=[str(_cut(bug)) for bug in result.get("bugs", ())][:10],
        recording=recording,
        shrunk=before - len(recording.model) if recording else 0,
        note=note,
    )


def _recording(
    store: Store, info: TurnInfo, moves: list[str], whole: bool, hidden: list[str]
) -> tuple[Recording | None, int, str]:
    """The recording, the number of replies in the whole, and why it is missing."""
    if info.table_name != AGENT_TURN:
        return None, 0, f"the turn is one of the table {info.table_name}"
    if info.ended is None or not moves:
        return None, 0, "the turn has not ended"
    if len(moves) > LONGEST:
        return None, 0, f"the turn has {len(moves):,} moves; a recording has at most {LONGEST:,}"
    try:
        recorded = mask_json(recording_of(store, info.id), hidden)
        made = Replay(**recorded).run()
        if made.moves != moves:
            raise AssertionError("its moves are others")
        replies = len(recorded["model"])
        if not whole:
            recorded, made = shrunk(recorded)
    except (AssertionError, FsmAgentError, *UNREADABLE) as error:
        return None, 0, f"it does not come out the same when it is played again: {one_line(str(error), 200)}"
    return Recording(**recorded, moves=made.moves, answer=made.final_response), replies, ""


def _cut(text: Any) -> str | None:
    if text is None or len(str(text)) <= _MOST_WORDS:
        return None if text is None else str(text)
    return f"{str(text)[:_MOST_WORDS]}…"


def read_report(text: str, name: str) -> TurnReport:
    """The report in the text of a file. Raises ``ConfigError`` for anything else, in one line."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        return TurnReport.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"this is no report of a turn ({where}: {first['msg']})", name) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is no report of a turn ({error})", name) from None


def of_this_table(report: TurnReport) -> bool:
    """Say whether the turn was moved by the table of this version."""
    return report.table == DIGEST
