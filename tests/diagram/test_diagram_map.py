"""The map and the text of all pictures: nothing missing, nothing on top of another thing, large enough to
read where it is shown."""

from __future__ import annotations

import re
import struct
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fsm_agent import Agent
from fsm_agent.diagram import render, written
from fsm_agent.diagram.around import around, neighbourhood
from fsm_agent.diagram.layout import COLUMN, map_of, roomy
from fsm_agent.diagram.proof import SENTENCES, sentence_of
from fsm_agent.diagram.scene import scene_of
from fsm_agent.diagram.svg import as_png
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent.support.installation import install_command
from fsm_agent.testing import ScriptedModel, call, text, tools
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.table import TURN
from tests.helpers.command_line import Cli
from tests.helpers.diagram_reading import crossed_labels, unreadable
from tests.helpers.diagram_tables import SMALL, coverage_of, overlay_of, plain, united_of
from tests.helpers.tables import courier

ROOT = Path(__file__).parents[2]
LEAST = 11.0
SHOWN = re.compile(r"!\[[^\]]*\]\(([^)]+\.svg)\)(?!\]\(\1\))")
"""Pictures in a page, but for those that a click opens at their own size."""
each_table = pytest.mark.parametrize("table", [TURN, SMALL, courier()], ids=lambda table: table.name)


def map_svg(table: Table) -> str:
    small, layout = map_of(table)
    return written(small, "svg", layout)


def smallest_text(svg: str, room: float = float("inf")) -> float:
    """Pixels of the smallest text of a picture at its stated width (by default that of its coordinates), or
    in a narrower column."""
    root = ET.fromstring(svg)
    drawn = float(root.attrib["viewBox"].split()[2])
    stated = root.attrib.get("width", str(drawn))
    unit = {"pt": 4 / 3}.get(re.sub(r"[\d.]", "", stated), 1.0)
    width = float(stated.removesuffix("pt").removesuffix("px")) * unit
    sizes = [float(size) for size in re.findall(r"font(?:-size)?\s*[:=][\s\"']*([\d.]+)", svg)]
    assert sizes, "a picture says how large its text is"
    return min(sizes) * min(width, room) / drawn


def look() -> str:
    """Look."""
    return "seen"


@each_table
def test_the_map_has_every_state_and_every_way_between_them(table: Table) -> None:
    root = ET.fromstring(map_svg(table))
    states = {one.attrib["data-state"] for one in root.iter() if "data-state" in one.attrib}
    ways = {(one.get("data-source"), one.get("data-dest")) for one in root.iter() if one.get("data-source")}
    own = [row for row in table.rows if row.event not in table.is_macro]
    assert states == set(table.states)
    assert ways == {(row.source, row.dest) for row in own}


@each_table
def test_nothing_of_a_map_covers_another_thing(table: Table) -> None:
    assert unreadable(scene_of(*map_of(table))) == []
    if table is TURN:  # its places are given, so no label needs to hide a line
        assert crossed_labels(scene_of(*map_of(table))) == []


def test_a_turn_without_surprises_is_the_boldest_and_each_state_says_what_it_does(tmp_path: Path) -> None:
    small, _ = map_of(TURN)
    usual = {(arrow.source, arrow.dest) for arrow in small.arrows if arrow.usual}
    turn = Agent(ScriptedModel([tools(call("look")), text("ok")]), tools=[look], home=tmp_path).start("hi")
    turn.run()
    assert usual == {(step.source, step.dest) for step in turn.steps}
    assert [box.state for box in small.boxes if not box.intro or box.intro[0].isdigit()] == []
    bold = re.search(r"\.usual \.line \{ stroke-width: ([\d.]+)", map_svg(TURN))
    out = re.search(r"\.out \.line \{ stroke-width: ([\d.]+)", map_svg(TURN))
    assert bold is not None
    assert out is not None
    assert float(bold[1]) > float(out[1])


def test_the_map_of_the_turn_fits_into_the_column_of_a_readme() -> None:
    small, layout = map_of(TURN)
    assert set(layout["boxes"]) == set(TURN.states)
    assert set(layout["arrows"]) == {(arrow.source, arrow.dest) for arrow in small.arrows}
    assert float(ET.fromstring(map_svg(TURN)).attrib["width"]) <= COLUMN


def pictures() -> dict[str, str]:
    """One of each kind that this package draws."""
    made = {f"map of {table.name}": map_svg(table) for table in (TURN, SMALL, courier())}
    made |= {f"table of {table.name}": render(table, "svg") for table in (TURN, SMALL)}
    made["own layout"] = render(TURN, "svg", layout=LAYOUT)
    for name, marked in (("run", overlay_of(TURN)), ("coverage", coverage_of(TURN)), ("diff", united_of())):
        made[name] = written(marked, "svg", roomy(LAYOUT, plain(TURN), marked))
    near = neighbourhood(TURN, "CallLLM")
    made["near"] = written(near, "svg", around(near, "CallLLM"))
    return made


def test_no_text_is_smaller_than_11_pixels_at_the_stated_width() -> None:
    found = {name: smallest_text(svg) for name, svg in pictures().items()}
    folders = ("diagrams/*.svg", "examples/diagrams/*/*.svg", "docs/**/*.svg")
    kept = [path for folder in folders for path in ROOT.glob(folder)]
    found |= {str(path.relative_to(ROOT)): smallest_text(path.read_text("utf-8")) for path in kept}
    assert len(found) > len(kept) > 10
    assert {name: size for name, size in found.items() if size < LEAST} == {}


@pytest.mark.slow
def test_no_text_of_graphviz_is_smaller_either() -> None:
    assert smallest_text(written(plain(TURN), "svg", engine="graphviz")) >= LEAST


def test_pictures_in_pages_can_be_read_in_a_column_of_830_pixels() -> None:
    found = {}
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")):
        for name in SHOWN.findall(page.read_text("utf-8")):
            found[f"{page.name}: {name}"] = smallest_text((page.parent / name).read_text("utf-8"), COLUMN)
    assert "diagrams.md: ../diagrams/turn-map.svg" in found
    assert {name: size for name, size in found.items() if size < LEAST} == {}


def test_the_measure_sees_small_text() -> None:
    svg = render(TURN, "svg", layout=LAYOUT)
    assert smallest_text(svg) > LEAST > smallest_text(svg, COLUMN)
    assert smallest_text(svg.replace("font: 13px", "font: 9px")) < LEAST


def test_the_command_draws_maps(cli: Cli) -> None:
    assert cli("diagram", "--map", "-f", "svg") == (0, map_svg(TURN), "")
    assert "CallLLM --> ExecuteTools : tools" in cli("diagram", "--map")[1]
    assert '"CallLLM" -> "ExecuteTools"' in cli("diagram", "--map", "-f", "dot")[1]


# PNG


def test_a_png_has_two_pixels_for_one_and_both_themes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from fsm_agent.cli import main

    pytest.importorskip("resvg_py")
    drawn = []
    for options in ((), ("--dark",)):
        assert main(("diagram", "--map", "-f", "png", *options)) == 0
        drawn.append(capfdbinary.readouterr().out)
    root = ET.fromstring(map_svg(TURN))
    for png in drawn:
        assert png.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", png[16:24])
        assert abs(width - 2 * float(root.attrib["width"])) <= 1
        assert abs(height - 2 * float(root.attrib["height"])) <= 1
    assert drawn[0] != drawn[1]
    with pytest.raises(ConfigError, match="this picture cannot be drawn"):
        as_png("<svg")


def test_without_its_extra_a_png_is_one_line(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    err = cli.refused("diagram", "--format", "png")
    assert "a PNG needs resvg-py" in err
    assert install_command("png") in err
    assert "only a PNG has one theme" in cli("diagram", "-f", "svg", "--dark")[2]


# The proofs page


def test_each_check_has_a_plain_sentence() -> None:
    """On the kept page of the turn, which `make check` compares with a new one."""
    page = (ROOT / "diagrams" / "turn.proofs.md").read_text("utf-8")
    for name, sentence in SENTENCES.items():
        assert f"- **{name[0].upper()}{name[1:]}.** {sentence}" in page
    assert len(re.findall(r"^- \*\*", page.partition("## Properties")[0], re.MULTILINE)) == len(SENTENCES)
    assert "demands" in sentence_of("a promise of a custom table")
