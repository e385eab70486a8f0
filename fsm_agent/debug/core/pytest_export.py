"""A pytest file from a recorded turn. It is run before it is given away, so what one gets is green."""

from __future__ import annotations

import pprint
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsm_agent.conversation.effects import KINDS
from fsm_agent.debug.core.record import Record
from fsm_agent.debug.core.replay import Replay
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.rewind.positions import position_of
from fsm_agent.settings.model import Settings
from fsm_agent.support.redaction import mask_json
from fsm_agent.support.texts import one_line

LONGEST = 2_000
"""Moves of a turn that is still a test."""
OPENED = (
    "runtime", "tools", "system_prompt", "workdir", "auxiliary", "compacted_before", "compaction_blocked",
    "review_due", "unnamed", "has_engine", "checks", "output",
)  # fmt: skip
WIDTH = 120


def make_test(store: Store, turn_id: str) -> str:
    """The text of a test that plays the turn again and checks its moves and its end. Raises ``ConfigError``
    for a turn that has not ended, is too long, or does not come out the same (one that was forked with
    changes of its state, for instance)."""
    record = Record(store, turn_id)
    info = record.info
    if info.ended is None or not info.seq:
        raise ConfigError("only a turn that has ended can be made a test", turn_id)
    if info.seq > LONGEST:
        raise ConfigError("the turn is too long for a test", f"{info.seq:,} moves", f"up to {LONGEST:,}")
    recorded = mask_json(_recorded(store, record))
    moves, result = [step.row for step in record.steps()], mask_json(record.overview()["result"] or {})
    _prove(recorded, moves, turn_id)
    return _file(
        turn_id,
        one_line(mask_json(info.asked), 80),
        recorded,
        moves,
        str(info.exit),
        result.get("final_response"),
    )


def _recorded(store: Store, record: Record) -> dict[str, Any]:
    start, opened = record.snapshot(0), record.snapshot(1)
    model: list[Any] = []
    tools: dict[str, list[Any]] = defaultdict(list)
    others: dict[str, list[Any]] = defaultdict(list)
    for at in range(record.count + 1):
        visit = [one for one in record.visit(at) if one["reply"] is not None]
        for one in visit:
            if one["kind"] == "CallModel":
                model.append(one["reply"])
            elif one["kind"] == "RunTool":
                tools[one["request"]["call_id"]].append(one["reply"])
            elif (kind := KINDS.get(one["kind"])) is not None and kind.replayed:
                others[one["kind"]].append(one["reply"])
    position = position_of(store, record.turn_id, 0)
    return {
        "message": start["user_content"],
        "history": record.messages(1, 0, record.message_count(1) - len(opened["rows"]) - 1),
        "settings": _others_than(position.settings, Settings.model_construct().model_dump(mode="json")),
        "opened": (
            {name: opened[name] for name in OPENED if opened.get(name)}
            | {"meter": start["meter"], "attended": start["attended"]}
        ),
        "model": model,
        "tools": dict(tools),
        "others": dict(others),
    }


def _others_than(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not at their default, nested as they are."""
    other: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            if inner := _others_than(value, usual[name]):
                other[name] = inner
        elif value != usual.get(name):
            other[name] = value
    return other


def _prove(recorded: dict[str, Any], moves: list[str], turn_id: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(**recorded)
        turn = replay.turn(Path(folder))
        turn.run()
    made = [step.row for step in turn.steps]
    if made != moves:
        number = next(
            (n for n, (one, other) in enumerate(zip(made, moves, strict=False), 1) if one != other),
            min(len(made), len(moves)) + 1,
        )
        why = f"; {replay.missing[0]} is not in the record" if replay.missing else ""
        raise ConfigError(
            f"this turn does not come out the same when it is played again: move {number} is another{why}",
            turn_id,
        )


def _file(
    turn_id: str, asked: str, recorded: dict[str, Any], moves: list[str], exit_reason: str, final: Any
) -> str:
    asked = asked.replace("\\", "/").replace('"', "'")
    how = (
        f"It ended with {exit_reason} after {len(moves)} moves. Made from its journal by the debugger of"
        " fsm-agent."
    )
    parts = [
        f'"""Turn {turn_id}: {asked}\n\n{how}\n"""\n',
        "from pathlib import Path\n\nfrom fsm_agent.debug.core.replay import Replay\n",
        f"MOVES = {_written(moves)}\n",
        f"MESSAGE = {_written(recorded['message'])}\n",
        f"HISTORY = {_written(recorded['history'])}\n",
        f"# what the model answered, in order\nMODEL = {_written(recorded['model'])}\n",
        f"# what the tools gave back, by call\nTOOLS = {_written(recorded['tools'])}\n",
        f"# what else came from outside, by kind of request\nOTHERS = {_written(recorded['others'])}\n",
        f"OPENED = {_written(recorded['opened'])}\n",
        f"SETTINGS = {_written(recorded['settings'])}\n",
        f"FINAL_RESPONSE = {_written(final)}\n\n",
        _TEST.format(exit=exit_reason),
    ]
    return "\n".join(parts)


_TEST = """def test_turn(tmp_path: Path) -> None:
    replay = Replay(
        message=MESSAGE, history=HISTORY, model=MODEL, tools=TOOLS, others=OTHERS, opened=OPENED,
        settings=SETTINGS
    )
    turn = replay.turn(tmp_path)
    result = turn.run()
    assert [step.row for step in turn.steps] == MOVES
    assert result.turn_exit_reason == {exit!r}
    assert result.final_response == FINAL_RESPONSE
    assert replay.left() == []
"""


def _written(value: Any) -> str:
    return pprint.pformat(value, width=WIDTH, sort_dicts=False)
