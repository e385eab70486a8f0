"""What turns did, drawn over the table: paths, counts, times, rows never taken."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import pytest

from fsm_agent.diagram import written
from fsm_agent.diagram.counts import (
    counts_json,
    coverage,
    coverage_diagram,
    coverage_markdown,
    duration,
    overlaid,
    path_in_words,
    run_markdown,
)
from fsm_agent.diagram.layout import automatic, roomy
from fsm_agent.diagram.model import Diagram, words
from fsm_agent.diagram.runs import read_runs, tally, tally_from, tally_of
from fsm_agent.diagram.scene import scene_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.table import Table
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.table import TURN
from tests.helpers.diagram_reading import unreadable, visible_text
from tests.helpers.diagram_tables import SMALL, USUAL, coverage_of, overlay_of, plain, steps, wandering

HEADER = {"kind": "fsm-agent", "version": 1, "of": "turn", "id": "b"}


def exported(path: Path, *turns: tuple[str, Sequence[Step]], header: object = None) -> str:
    """A file as an export of turns has it: moves between lines of other kinds."""
    lines: list[object] = [header] if header else []
    for name, moves in turns:
        lines.append({"kind": "turn", "id": name, "asked": "hello"})
        lines += [{"kind": "move", "turn": name, "at": 0.0, "delta": {}, **asdict(move)} for move in moves]
        lines.append({"kind": "message", "role": "assistant", "body": {"text": "done"}})
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    return str(path)


# Reading


def test_the_moves_of_a_turn_are_read_as_they_were_made(tmp_path: Path) -> None:
    moves = steps(TURN, USUAL)
    looked = {"guards": [("iterations left", True)], "changes": [("iterations", 0, 1)]}
    moves[0] = replace(moves[0], **looked)
    (run,) = read_runs(exported(tmp_path / "turn.jsonl", ("a", moves)))
    assert list(run.steps) == moves


def test_turns_are_told_apart_and_of_an_export_of_one_only_that_is_read(tmp_path: Path) -> None:
    one, two = steps(TURN, USUAL), steps(TURN, ["ready", "built", "text"])
    assert tally(TURN, [*one, *two, *two]).runs == (tuple(one), tuple(two), tuple(two))
    source = exported(tmp_path / "session.jsonl", ("a", one), ("b", two))
    assert tally_of(TURN, [source, source]).runs == (tuple(one), tuple(two)) * 2
    source = exported(tmp_path / "turn.jsonl", ("a", one), ("b", two), header=HEADER)
    assert [list(run.steps) for run in read_runs(source)] == [two]
    assert len(tally_of(TURN, [source]).runs) == 1


def test_exports_and_counts_of_tests_add_up(tmp_path: Path) -> None:
    counts, moves = tmp_path / "rows.json", steps(TURN, USUAL)
    counts.write_text('{"table": "turn", "rows": {"CallLLM.text": 4, "Prepare.ready": 0}}')
    found = tally_of(TURN, [exported(tmp_path / "turn.jsonl", ("a", moves)), str(counts)], moves)
    assert found.rows["CallLLM.text"] == 6
    assert found.rows["CallLLM.tools"] == found.rows["Prepare.ready"] == 2
    assert (found.rows["Prepare.crashed"], found.moves) == (0, 2 * len(moves) + 4)
    assert found.visits["Finalize"] == 6
    assert found.seconds["BuildMessages"] == pytest.approx(2 * 3 * 0.5)
    assert len(found.runs) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read it (No such file or directory)"),
        (b"\xff\xfe", "this is not text"),
        (b"", "there is no move in this file"),
        (b'{"kind": "turn"}\n', "there is no move in this file"),
        (b'{"kind": "turn"}\nmove\n', "line 2 is not JSON"),
        (b'{"kind": "move", "seq": 1, "row": "Prepare.ready"}', "line 1 is not a complete move"),
        (json.dumps({"kind": "move", "seq": "1", **dict.fromkeys(("source", "row"), "a")}).encode(),
         "not a complete move"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_line(content: bytes | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "turn.jsonl").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_runs(str(tmp_path / "turn.jsonl"))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_counts_of_another_table_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"table": "small", "rows": {}}')
    with pytest.raises(ConfigError, match="counts rows of the table 'small'"):
        tally_of(TURN, [str(tmp_path / "rows.json")])
    (tmp_path / "rows.json").write_text('{"table": "turn", "rows": {"Prepare.ready": -1}}')
    with pytest.raises(ConfigError, match="neither a move nor a row count"):
        tally_of(TURN, [str(tmp_path / "rows.json")])
    with pytest.raises(ConfigError, match=r"no row of the table 'small' was taken; given: Prepare\.ready"):
        tally(SMALL, steps(TURN, USUAL))


def test_moves_of_an_older_version_are_told_not_lost() -> None:
    gone = Step(9, "CallLLM", "gone", "Finalize", "CallLLM.gone", [], [], 0.1, "over")
    found = tally(TURN, [*steps(TURN, USUAL[:-1]), gone])
    assert found.foreign == {"CallLLM.gone": 1}
    for text in (run_markdown(TURN, found), coverage_markdown(TURN, found)):
        assert "| `CallLLM.gone` | 1 |" in text
    assert json.loads(counts_json(TURN, found))["foreign"] == {"CallLLM.gone": 1}
    told = " ".join(visible_text(written(coverage_diagram(plain(TURN), found), "svg")).split())
    assert "Moves by rows that this table does not have: 1 (CallLLM.gone)." in told


# Drawing


def classes(root: ET.Element, **attributes: str) -> set[str]:
    """The classes of the one element that has these attributes."""
    wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
    (element,) = (e for e in root.iter() if all(e.get(name) == value for name, value in wanted.items()))
    return set((element.get("class") or "").split())


def test_an_overlay_shows_path_counts_and_times() -> None:
    marked = overlay_of(TURN)
    root = ET.fromstring(written(marked, "svg", roomy(LAYOUT, plain(TURN), marked)))
    text = visible_text(written(marked, "svg"))
    assert "send again ×1 › send ×2" in text
    assert "3 visits, 1.5 s" in text
    assert "9 moves, 4.5 s, ⇥ text response." in text
    path = "Prepare ready → BuildMessages send → CallLLM tools → ExecuteTools done →"
    assert path in text.replace("\n", " ")
    assert "unused" not in classes(root, id="arrow-CallLLM-ExecuteTools")
    assert "unused" in classes(root, id="arrow-CallLLM-EmptyRecovery")
    assert "unused" in classes(root, id="state-Compress")
    assert "taken" in classes(root, data_rows="ClassifyError.overloaded/1")
    assert "unused" in classes(root, data_rows="ClassifyError.overloaded/2")


def test_an_arrow_that_was_taken_more_often_is_thicker() -> None:
    rounds = ["built", "tools", "done"] * 8
    marked = overlay_of(TURN, ["ready", *rounds, "built", "error", "overloaded", "built", "text"])
    svg = written(marked, "svg", roomy(LAYOUT, plain(TURN), marked))
    found = re.findall(r'id="arrow-([\w-]+)".*\n.*style="stroke-width:([\d.]+)"', svg)
    widths = {name: float(width) for name, width in found}
    assert widths["CallLLM-ExecuteTools"] > widths["CallLLM-ClassifyError"] > 1.6
    assert max(widths.values()) <= 6.5
    assert "CallLLM-EmptyRecovery" not in widths


def test_what_repeats_in_a_path_is_written_once() -> None:
    run = tuple(steps(TURN, ["ready", *["built", "tools", "done"] * 30, "built", "text"]))
    rounds = "30 × (BuildMessages send → CallLLM tools → ExecuteTools done)"
    path = ("Prepare ready", rounds, "BuildMessages send", "CallLLM text")
    assert path_in_words(TURN, run) == path


def test_a_coverage_shows_what_was_never_taken() -> None:
    svg = written(coverage_of(TURN), "svg")
    root, text = ET.fromstring(svg), visible_text(svg)
    never = {row.id for row in TURN.rows} - {step.row for step in steps(TURN, USUAL)}
    spans = (e for e in root.iter() if e.tag.endswith("tspan") and e.get("data-rows"))
    for rows, style in ((e.get("data-rows", ""), e.get("class", "")) for e in spans):
        assert ("never" in style.split()) == never.issuperset(rows.split()), rows
    assert f"8 of {len(TURN.rows)} rows ({100 * 8 // len(TURN.rows)} %) taken by 9 moves." in text
    assert "one retry ×1 (1/3)" in text
    assert "1 of 33 exits" in text
    assert "never" in classes(root, id="arrow-ClassifyError-Compress")
    assert "never" not in classes(root, id="arrow-CallLLM-ClassifyError")
    for mark in ("never", "partly"):  # one color on white, one on black
        assert svg.count(f".fsm tspan.{mark}, .fsm tspan.out.{mark} {{ fill:") == 2


def test_full_coverage_has_nothing_red() -> None:
    svg = written(coverage_diagram(plain(TURN), tally_from(TURN, {row.id: 3 for row in TURN.rows})), "svg")
    assert f"{len(TURN.rows)} of {len(TURN.rows)} rows (100 %)" in visible_text(svg)
    assert not re.search(r'class="[^"]*\b(never|partly)\b', svg)


def test_every_text_of_a_count_says_the_same() -> None:
    found = tally(TURN, steps(TURN, USUAL))
    value = json.loads(counts_json(TURN, found))
    assert (value["taken"], value["of"]) == coverage(TURN, found) == (8, len(TURN.rows))
    assert value["path"] == [step.row for step in found.runs[0]]
    assert value["states"]["BuildMessages"] == {"visits": 3, "seconds": 1.5, "taken": 2, "of": 22}
    assert set(value["never"]) == {row for row, count in found.rows.items() if not count}
    text = coverage_markdown(TURN, found)
    assert f"**8 of {len(TURN.rows)} rows** ({100 * 8 // len(TURN.rows)} %) taken by 9 moves." in text
    assert [text.count(f"| `{row.id}` |") for row in TURN.rows] == [1] * len(TURN.rows)
    moves = run_markdown(TURN, found)
    assert "| 7 | `ClassifyError.overloaded/1` | BuildMessages |" in moves
    leaving = sum(row.source == "CallLLM" for row in TURN.rows)
    assert f"| CallLLM | 3 | 1.5 s | 3 of {leaving} |" in moves


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 ms"), (0.35, "350 ms"), (0.9996, "1 s"), (4.123, "4.12 s"), (125.9, "2 min 5 s")],
)
def test_durations_are_short(seconds: float, told: str) -> None:
    assert duration(seconds) == told


# Room


def marked_pictures() -> list[tuple[str, Diagram, Table]]:
    long = wandering(TURN, 3)
    many = [step for seed in range(12) for step in wandering(TURN, seed)]
    often = tally_from(TURN, {row.id: 123_456 for row in TURN.rows})
    small = tally(SMALL, steps(SMALL, ["go", "act", "bad", "ok", "said"]))
    return [
        ("overlay", overlay_of(TURN), TURN), ("long overlay", overlaid(plain(TURN), tally(TURN, long)), TURN),
        ("coverage", coverage_of(TURN), TURN), ("much coverage", coverage_diagram(plain(TURN), often), TURN),
        ("of many turns", coverage_diagram(plain(TURN), tally(TURN, many)), TURN),
        ("small", coverage_diagram(plain(SMALL), small), SMALL),
    ]  # fmt: skip


PICTURES = marked_pictures()


@pytest.mark.parametrize(
    ("marked", "table"), [entry[1:] for entry in PICTURES], ids=[entry[0] for entry in PICTURES]
)
def test_counts_have_room(marked: Diagram, table: Table) -> None:
    layout = roomy(LAYOUT, plain(TURN), marked) if table is TURN else automatic(marked)
    assert unreadable(scene_of(marked, layout)) == []


def test_a_roomier_layout_keeps_every_box_where_it_was_to_the_others() -> None:
    marked = coverage_of(TURN)
    before = {p.box.state: p.rect for p in scene_of(plain(TURN), LAYOUT).boxes}
    after = {p.box.state: p.rect for p in scene_of(marked, roomy(LAYOUT, plain(TURN), marked)).boxes}
    for a, b in combinations(before, 2):
        assert (before[a].x < before[b].x) == (after[a].x < after[b].x)
        assert (before[a].y < before[b].y) == (after[a].y < after[b].y)
    same = scene_of(plain(TURN), roomy(LAYOUT, plain(TURN), plain(TURN)))
    assert [(p.rect.x, p.rect.y) for p in same.boxes] == [(r.x, r.y) for r in before.values()]


def test_words_of_counts_are_in_every_format() -> None:
    for form in ("mermaid", "dot", "svg"):
        text = written(coverage_of(TURN), form)
        assert "rebuild ×0" in text, form
        assert words("attempt_cap_reached") in text
