"""``fsm-agent report``: one file about a turn, which a user sends and a maintainer replays: masked, bounded,
and data alone.

It contains only what led to the end of the turn: the recording is shrunk to the replies that its last row
needs, unless the whole is requested. A reader trusts nothing in it. It is JSON that is checked field by
field, and a replay runs the states of this version, which perform no request."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.text import Text

from fsm_agent.backtest.replay import LONGEST, Replay, recording_of, shrunk, text_of_test
from fsm_agent.cli.options import Home
from fsm_agent.cli.screen import clean, count, put, screen
from fsm_agent.cli.session_files import write_lines
from fsm_agent.cli.sessions import store_of
from fsm_agent.composition.turn_wiring import DIGEST
from fsm_agent.errors import ConfigError, FsmAgentError
from fsm_agent.fsm.values import UNREADABLE
from fsm_agent.fsm.verify.report import fold
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import AGENT_TURN, TurnInfo, Turns
from fsm_agent.sessions.store.stored_sessions import any_turn
from fsm_agent.support import __version__
from fsm_agent.support.redaction import environment_keys, mask_json
from fsm_agent.support.texts import one_line

MOST_BYTES = 2_000_000
"""Maximum bytes of a file. A longer recording is left out, and the report says so."""
_MOST_WORDS = 2_000
"""Maximum characters of an answer, an error, or a bug."""


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
        """Return the text of a file of at most ``MOST_BYTES``; a recording that does not fit is left out."""
        text = json.dumps(self.model_dump(), ensure_ascii=True, indent=1) + "\n"
        if len(text) <= MOST_BYTES:
            return text
        note = f"the recording has {len(text):,} bytes; a report has at most {MOST_BYTES:,}"
        return self.model_copy(update={"recording": None, "note": note}).to_text()

    def replay(self) -> str:
        """Replay the recording with the states of this version. Return how the replay differs from the
        report, or an empty text."""
        if self.recording is None:
            return self.note or "it has no recording"
        given = self.recording.model_dump(exclude={"moves", "answer"})
        try:
            played = Replay(**given).run()
        except (AssertionError, FsmAgentError, *UNREADABLE) as error:
            return one_line(str(error) or type(error).__name__, 200)
        pairs = enumerate(zip(played.moves, self.recording.moves, strict=False), 1)
        if played.moves != self.recording.moves:
            short = min(len(played.moves), len(self.recording.moves))
            number = next((number for number, (now, was) in pairs if now != was), short + 1)
            before, after = ([*side, "the end"][number - 1] for side in (played.moves, self.recording.moves))
            return one_line(f"move {number} is {before} instead of {after}", 200)
        return "" if played.final_response == self.recording.answer else "the answer is another one"

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
    """Return the report of a turn, ended or not. ``whole``: with every reply, not only those that its end
    needs; ``secrets`` are masked in addition to everything that looks like a key."""
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
    """Return the recording, the number of replies before shrinking, and why the recording is missing."""
    if info.table_name != AGENT_TURN:
        return None, 0, f"the turn is one of the table {info.table_name}"
    if info.ended is None or not moves:
        return None, 0, "the turn has not ended"
    if len(moves) > LONGEST:
        return None, 0, f"the turn has {len(moves):,} moves; a recording has at most {LONGEST:,}"
    try:
        recorded = mask_json(recording_of(store, info.id), hidden)
        played = Replay(**recorded).run()
        if played.moves != moves:
            raise AssertionError("its moves are others")
        replies = len(recorded["model"])
        if not whole:
            recorded, played = shrunk(recorded)
    except (AssertionError, FsmAgentError, *UNREADABLE) as error:
        return None, 0, f"it does not come out the same when it is played again: {one_line(str(error), 200)}"
    return Recording(**recorded, moves=played.moves, answer=played.final_response), replies, ""


def _cut(text: Any) -> str | None:
    if text is None or len(str(text)) <= _MOST_WORDS:
        return None if text is None else str(text)
    return f"{str(text)[:_MOST_WORDS]}…"


def read_report(text: str, name: str) -> TurnReport:
    """Parse the text of a report's file. Raises ``ConfigError`` with one line for anything else."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        return TurnReport.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"this is not a report of a turn ({where}: {first['msg']})", name) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is not a report of a turn ({error})", name) from None


# The command.


def report(
    name: Annotated[
        str | None, typer.Argument(metavar="TURN", help="A turn, or a session for its newest one.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Default: standard output.")
    ] = None,
    show: Annotated[
        str | None, typer.Option(metavar="FILE", help="Print what a report says, and replay it.")
    ] = None,
    pytest: Annotated[
        bool, typer.Option("--pytest", help="With --show: print the turn as a test instead.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="With all replies, not only those that its end needs.")
    ] = False,
    home: Home = None,
) -> int:
    """Write one masked file about a turn, from which others can replay it.

    The file has the replies that the end of the turn needs, its settings and its prompt. Secrets are masked.
    Nothing in a file is executed when it is shown: the replies are played to the states of this version.
    """
    if (name is None) == (show is None):
        raise ConfigError(
            "a report is written of a turn, or shown", name or "neither", "TURN, or --show FILE"
        )
    if show is not None:
        return _show(show, pytest, output)
    if pytest:
        raise ConfigError("a test is made of a report", "--pytest", "--pytest with --show FILE")
    store = store_of(home)
    keys = [os.environ.get(profile.key_env or "", "") for profile in PROFILES.values()]
    html = report_of(
        store, any_turn(store, str(name)), whole=whole, secrets={*keys, *environment_keys(os.environ)}
    )
    _write(html.to_text(), output)
    if output is not None:
        shrunk = f", {count(html.shrunk, 'model answer')} left out" if html.shrunk else ""
        why = f"; it cannot be replayed: {html.note}" if html.note else ""
        print(f"turn {html.turn} in {output}, secrets masked{shrunk}{clean(why)}", file=sys.stderr)
    return 0


def _show(path: str, pytest: bool, output: str | None) -> int:
    """Print a report and replay it; return 1 if the replay differs from the report."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the report cannot be read ({error})", path) from None
    found = read_report(text, path)
    if pytest:
        _write(found.as_test(), output)
        return 0
    other = found.replay()
    put(screen(), *_lines(found, other))
    return int(bool(other))


def _write(text: str, output: str | None) -> None:
    if output is None or output == "-":
        sys.stdout.write(text)
    else:
        write_lines(Path(output), iter(text.splitlines()))


def _lines(found: TurnReport, other: str) -> Iterator[Text]:
    ours = "the table of this version" if found.table == DIGEST else f"another table ({found.table})"
    yield Text(clean(f"{found.turn}: {found.asked}"), "bold")
    yield Text(clean(f"  fsm-agent {found.version}, Python {found.python}, {found.system}; {ours}"))
    yield Text(clean(f"  {count(len(found.moves), 'move')}: {_path(found.moves)}"))
    yield Text(clean(f"  ended with {found.exit or 'nothing yet'} ({found.outcome or 'unfinished'})"))
    for label, text in (
        ("answer", found.answer),
        ("error", found.error),
        *(("bug", bug) for bug in found.bugs),
    ):
        if text:
            yield Text(clean(f"  {label}: {text}"))
    if one := found.recording:
        settings = ", ".join(sorted(one.settings)) or "none"
        yield Text(clean(f"  settings that differ from their defaults: {settings}"))
        left_out = f", {found.shrunk} left out" if found.shrunk else ""
        replies = f"{count(len(one.model), 'model answer')}{left_out}"
        yield Text(clean(f"  recording: {replies}: {_path(one.moves)}"))
    if other:
        yield Text(clean(f"  replayed: not as recorded: {other}"), "red")
    else:
        yield Text("  replayed: the same moves, the same answer", "green")


def _path(moves: list[str]) -> str:
    return " → ".join(map(str, fold(moves)))
