"""Diagrams of what turns are expected to do."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fsm_agent.backtest import predict
from fsm_agent.diagram import written
from fsm_agent.diagram.counts import Paths, forecast_json, forecast_markdown, percent, predict_diagram
from fsm_agent.diagram.model import diagram_of
from fsm_agent.diagram.svg import DARK, LIGHT
from tests.helpers.command_line import Cli
from tests.helpers.diagram_tables import SMALL, steps
from tests.helpers.recorded_turns import record


def turn(*events: str) -> list[object]:
    return [SMALL.row(step.row) for step in steps(SMALL, events)]


PATHS = Paths(
    [turn("go", "said")] * 88 + [turn("go", "act", "ok", "act", "ok", "said")] * 11 + [turn("go", "review", "fine")],
    "Predicted",
    ("From 3 turns.",),
)  # fmt: skip


def test_the_share_is_of_turns_that_take_a_row_at_least_once() -> None:
    assert PATHS.share(["Think.act/1"]) == 0.11
    assert PATHS.share(["Think.act/1", "Think.said"]) == 0.99
    assert PATHS.visits("Think") == (88 + 33 + 1) / 100


def test_percent() -> None:
    shares = (0, 0.001, 0.01, 0.123, 0.99, 0.999, 1)
    assert [percent(one) for one in shares] == ["", "<1 %", "1 %", "12 %", "99 %", ">99 %", "100 %"]


def test_rungs_and_arrows_have_their_share_and_its_color() -> None:
    drawn = predict_diagram(diagram_of(SMALL), PATHS)
    steps_of = {
        step.rows: step for box in drawn.boxes for one in box.entries for step in one.steps if step.rows
    }
    found = {rows[0]: (step.mark, step.tail) for rows, step in steps_of.items()}
    assert found["Think.said"] == ("likely", "99 %")
    assert found["Think.act/1"] == ("possible", "11 %")
    assert found["Check.fine"] == ("seldom", "1 %")
    assert found["Act.bad/1"] == ("unused", "")
    arrows = {(one.source, one.dest): (one.mark, one.labels) for one in drawn.arrows}
    assert arrows["Start", "Think"] == ("likely", ("go 100 %",))
    assert arrows["Think", "Check"] == ("seldom", ("review 1 %",))
    assert arrows["Act", "Act"][0] == "unused"


def test_every_format_draws_it() -> None:
    drawn = predict_diagram(diagram_of(SMALL), PATHS)
    svg = written(drawn, "svg")
    assert ET.fromstring(svg) is not None
    assert "From 3 turns." in svg
    assert all(color in svg for color in LIGHT.shares)
    assert "Think --> Act : do – ‹it› 11 %" in written(drawn, "mermaid").replace(",", " –")
    assert LIGHT.shares[0] in written(drawn, "dot")
    assert "| `Think.review` | → Check | 1 % |" in forecast_markdown(SMALL, PATHS)
    value = json.loads(forecast_json(SMALL, PATHS))
    assert (value["rows"]["Check.fine"], value["exits"]) == (0.01, {"answered": 0.99, "checked": 0.01})


def test_other_pictures_have_no_rules_for_shares() -> None:
    assert LIGHT.shares[2] not in written(diagram_of(SMALL), "svg")


def contrast(one: str, other: str) -> float:
    def light(color: str) -> float:
        parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_colors_can_be_read() -> None:
    for theme in (LIGHT, DARK):
        assert (
            min(contrast(color, ground) for color in theme.shares for ground in (theme.box, theme.page))
            >= 4.5
        )


def test_the_command_learns_from_the_home(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "TURNS", 160)
    record(tmp_path, 12, seed=5)
    home = ("--predicted", "--home", str(tmp_path))
    value = json.loads(cli.ok("diagram", *home, "-f", "json"))
    assert value["rows"]["Prepare.ready"] == 1
    assert sum(value["exits"].values()) == pytest.approx(1)
    fewer = json.loads(cli.ok("diagram", *home, "-f", "json", "--set", "max_iterations=1"))
    assert fewer["visits"]["CallLLM"] < value["visits"]["CallLLM"]
    svg = cli.ok("diagram", *home, "-f", "svg", "--set", "max_iterations=1")
    assert "max_iterations = 1, predicted from 12 recorded turns." in " ".join(ET.fromstring(svg).itertext())
    assert "Predicted rows of the turn table" in cli.ok("diagram", *home, "-f", "md")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--predicted", "--map"), "one picture shows one thing"),
        (("--predicted", "-f", "scxml"), "other engines get the whole table"),
        (("examples.order:TABLE", "--predicted"), "only turns of the agent's table are predicted"),
        (("--predicted",), "no recorded turn to learn from"),
    ],
)
def test_what_cannot_be_predicted(arguments: tuple[str, ...], says: str, cli: Cli) -> None:
    assert says in cli.refused("diagram", *arguments)
