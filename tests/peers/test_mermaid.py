"""Mermaid's own parser finds every row's label in every Mermaid text, whatever the names are made of."""

from __future__ import annotations

import random

import pytest

from examples import parallel
from fsm_agent.diagram import render, written
from fsm_agent.diagram.around import neighbourhood
from fsm_agent.diagram.graph_languages import clean
from fsm_agent.diagram.model import diagram_of
from fsm_agent.fsm.table import Rung, Table, end, lines_of, on
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.table import TURN
from tests.helpers.diagram_reading import missing_rows
from tests.helpers.diagram_tables import SMALL, changed_pair, coverage_of, overlay_of, united_of
from tests.helpers.tables import courier
from tests.peers import mermaid
from tests.peers.environment import PeerUnavailable

pytestmark = pytest.mark.slow

TRAPS = (
    "a < b", "a; b", "a : b", 'say "x"', "a %% b", "50 %", "a #35; b", "a --> b", "[*]", "{x}", "a | b", "&lt; x", "`x`", "**x**",
    "<<x>>", "<b>x</b>", "as x", "note", "end", "state", "direction LR", "go direction  TB now", "a:::b", "%%{init}%%", "---",
    "default", "$$x$$", "$x$", "×3 (2/3)", "− x", "+ x", "~ x", "é › ü", "a\nb", "class x", "click", "<<choice>>", "<script>",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    try:
        mermaid.read(["stateDiagram-v2\n    a --> b\n"])
    except PeerUnavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("table", [TURN, SMALL, courier(), parallel.TABLE], ids=lambda table: table.name)
def test_mermaid_reads_every_rows_label(table: Table) -> None:
    layout = LAYOUT if table is TURN else None
    assert [
        missing_rows(table, seen) for seen in mermaid.read([render(table, "mermaid", layout=layout)])
    ] == [[]]


def test_mermaid_reads_every_other_text() -> None:
    near = [written(neighbourhood(TURN, state), "mermaid") for state in TURN.states]
    seen = mermaid.read(
        [
            *near,
            *(written(marked, "mermaid") for marked in (overlay_of(TURN), coverage_of(TURN), united_of())),
        ]
    )
    for state, one in zip(TURN.states, seen, strict=False):
        rows = [row for row in TURN.rows if state in (row.source, row.dest)]
        assert {(row.source, row.dest) for row in rows} <= set(one.arrows)
        own = " ".join(one.lines[state])
        assert all(
            row.guard.label in own for row in rows if row.source == state and row.guard.label != "always"
        )
    *_, overlay, coverage, united = seen
    assert overlay.arrows["CallLLM", "ExecuteTools"] == "tools ×1"
    assert "rebuild ×0" in coverage.arrows["ClassifyError", "BuildMessages"]
    assert any("+ rekey" in line for line in united.lines["ClassifyError"])
    assert changed_pair()[1].by_event["ClassifyError", "limited"]


def names(label: str) -> Table:
    rung = Rung(label, "B")
    return Table("traps", ("A", "B", "Done"), "Done", (), lines_of({
        "A": [on("go", rung, why=""), on("x", end("over", "Done"), why="")],
        "B": [on("y", end(label, "Done"), why="")],
    }))  # fmt: skip


def test_no_name_is_cut_or_taken_for_a_statement() -> None:
    texts = [written(diagram_of(names(label), {}), "mermaid") for label in TRAPS]
    for label, seen in zip(TRAPS, mermaid.read(texts), strict=True):
        assert seen.arrows["A", "B"] == clean(label), label
        assert [line for line in seen.lines["B"] if "⇥" in line] == [f"y ⇥ {clean(label)}"], label
        assert not set(clean(label)) & set('<>;:"\n'), label


def test_no_text_at_all_is_cut() -> None:
    """400 names of random letters, signs and digits, many of them special to Mermaid somewhere."""
    chance, letters = random.Random(5), "abc XYZ 0129 äß λ 漢 🙂 <>;:\"'#%&$|`*_~^-+=/\\()[]{}!?.,@›⇥→×−"
    labels = ["".join(chance.choices(letters, k=chance.randint(1, 14))) for _ in range(400)]
    labels = [label for label in labels if label.strip(" ")]
    texts = [written(diagram_of(names(label), {}), "mermaid") for label in labels]
    cut = [
        (label, seen.arrows["A", "B"])
        for label, seen in zip(labels, mermaid.read(texts), strict=True)
        if seen.arrows["A", "B"] != clean(label)
    ]
    assert cut == []
