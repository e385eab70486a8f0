"""Which rows the lines of a table's source define."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_agent.composition.turn_wiring import MACHINE, STATES
from fsm_agent.debug.dap.breakpoints import (
    EditorBreakpoints,
    TableMap,
    state_sources,
    table_map,
    table_map_of,
)
from fsm_agent.fsm.table import Counter, Table, end, go, lines_of, on
from fsm_agent_states import table as table_module
from fsm_agent_states.table import TURN
from tests.helpers.dap_editor import TABLE, column_of, line_of

OWN = """
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on

AGAIN = Rung("again", "Ask", left("tries"), ("tries",))

TABLE = Table(
    name="own",
    states=("Ask", "Done"),
    final="Done",
    counters=(Counter("tries"),),
    lines=lines_of({
        "Ask": [
            on(
                "wörter", AGAIN,
                end("given_up", "Done"), why="it was not an answer",
            ), on("answer", end("answered", "Done"), why="ünd",),
        ],
    }),
    macros=(("stopped", {"Ask": "stopped"}),),
)
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[TableMap]:
    """The map of a table in an unusual style."""
    (tmp_path / "own_table.py").write_text(OWN, encoding="utf-8")
    sys.path.insert(0, str(tmp_path))
    try:
        yield table_map(importlib.import_module("own_table").TABLE, "own_table")
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("own_table", None)


def named(map: TableMap, line: int, column: int | None = None) -> list[str]:
    return [spot.named for spot in map.at(line, column)]


def test_every_row_of_the_turns_table_has_its_place_in_the_source() -> None:
    map = table_map(MACHINE.table, "fsm_agent_states.table")
    assert map.path == TABLE
    assert set(map.rows) == {row.id for row in MACHINE.table.rows}
    lines = TABLE.read_text("utf-8").splitlines()
    for row in MACHINE.table.rows:
        event = f'"{row.event}"'
        assert event in lines[map.rows[row.id].line - 1], row.id


def test_a_line_with_and_without_a_column() -> None:
    map = table_map(MACHINE.table, "fsm_agent_states.table")
    line = line_of('on("overloaded"')
    every = (
        "rows ClassifyError.overloaded/1, ClassifyError.overloaded/2, ClassifyError.overloaded/3,"
        " ClassifyError.overloaded/4"
    )
    assert named(map, line) == [every]
    assert map.at(line)[0].targets == (("event", "ClassifyError.overloaded"),)
    assert named(map, line, column_of(line, "FALLBACK")) == ["row ClassifyError.overloaded/2"]
    assert named(map, line, column_of(line, "why")) == [every]
    assert map.at(line_of('"CallLLM": ['))[0].targets == (("state", "CallLLM"),)
    assert named(map, line_of("# Table")) == []


def test_a_rung_where_it_is_defined_means_all_rows_made_with_it() -> None:
    map = table_map(MACHINE.table, "fsm_agent_states.table")
    for name in ("COMPRESS", "carry_on"):
        (spot,) = map.at(line_of("COMPRESS = Rung") if name == "COMPRESS" else line_of("def carry_on"))
        rung = "compress" if name == "COMPRESS" else "continue"
        assert [row for _, row in spot.targets] == [row.id for row in MACHINE.table.rows if row.rung == rung]


def test_lines_that_every_state_has() -> None:
    map = table_map(MACHINE.table, "fsm_agent_states.table")
    line = line_of("macros=")
    assert [spot.targets for spot in map.at(line)] == [(("event", "cancelled"),), (("event", "crashed"),)]
    assert map.at(line, column_of(line, '"crashed"'))[0].targets == (("event", "crashed"),)
    assert len(map.at(line_of("CANCELLED_IN = "))[0].targets) == len(MACHINE.table.states) - 1


def test_a_list_over_several_lines_and_two_lists_on_one(own: TableMap) -> None:
    lines = OWN.splitlines()
    begin = next(number for number, line in enumerate(lines, 1) if line.strip() == "on(")
    assert named(own, begin) == ["rows Ask.wörter/1, Ask.wörter/2"]
    assert named(own, begin + 1) == ["row Ask.wörter/1"]  # the rung that is on this line
    assert named(own, begin + 2) == ["row Ask.wörter/2"]
    assert named(own, begin + 3) == ["row Ask.answer"]  # what begins here, not what ends
    assert named(own, 4) == ["row Ask.wörter/1"]
    assert own.rows["Ask.stopped"].line == next(
        number for number, line in enumerate(lines, 1) if "macros" in line
    )


def test_columns_are_utf_16_units(own: TableMap) -> None:
    spot = own.rows["Ask.wörter/1"]
    assert OWN.splitlines()[spot.line - 1][spot.column - 1 : spot.end_column - 1] == "AGAIN"


def test_a_table_that_is_made_in_some_other_way_has_no_map() -> None:
    made = Table("made", ("A", "B"), "B", (Counter("n"),), lines_of({"A": [on("x", end("e", "B"), why="")]}))
    assert table_map(made, "fsm_agent.fsm.table").spots == ()
    assert go("A").to == "A"


def test_every_state_has_a_source() -> None:
    found = state_sources(STATES)
    assert set(found) == set(MACHINE.table.states)
    for where in found.values():
        assert where.path.read_text("utf-8").splitlines()[where.line - 1].startswith("def ")
        assert where.line < where.last


def test_a_program_without_a_spec_has_a_map_of_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was started by its file is such a module, and one that was typed has no file either."""
    for name, path in (("started", tmp_path / "started.py"), ("typed", None)):
        module = types.ModuleType(name)
        vars(module).update(TURN=TURN, Table=Table, **({"__file__": str(path)} if path else {}))
        monkeypatch.setitem(sys.modules, name, module)
    source = Path(table_module.__file__ or "").read_text(encoding="utf-8")
    (tmp_path / "started.py").write_text(source, encoding="utf-8")
    assert table_map(TURN, "started").path == tmp_path / "started.py"
    assert table_map(TURN, "started").spots
    assert not table_map(TURN, "typed").spots
    assert table_map_of(TURN).spots


def test_a_function_breakpoint_on_a_name_that_does_not_exist_says_the_names_that_do() -> None:
    points = EditorBreakpoints(TURN, table_map(TURN, "fsm_agent_states.table"), {})
    wrong, right = points.set_functions([{"name": "execute_tools"}, {"name": "ExecuteTools"}])
    assert (bool(wrong.made), bool(right.made)) == (False, True)
    assert "'execute_tools'; states and events: Prepare, " in wrong.message
    assert {"ExecuteTools", "overloaded"} <= set(wrong.message.replace(",", "").split())
    assert "\n" not in wrong.message
