"""Diagrams say what the table says and can be read: nothing missing, nothing on top of another thing,
nothing stale; of a whole table, of one state's surroundings, of children, and in every format."""

from __future__ import annotations

import json
import re
import shlex
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples import nested, order
from fsm_agent import Agent
from fsm_agent.diagram import FORMATS, Layout, render, written
from fsm_agent.diagram.__main__ import files, main, stale, write
from fsm_agent.diagram.around import around, near_json, near_markdown, neighbourhood
from fsm_agent.diagram.geometry import text_width, wrap_text
from fsm_agent.diagram.graph_languages import lay_out
from fsm_agent.diagram.layout import COLUMN, automatic
from fsm_agent.diagram.model import diagram_of, words
from fsm_agent.diagram.proof import proof_lines, proof_page
from fsm_agent.diagram.runs import runs_of
from fsm_agent.diagram.scene import Scene, scene_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table, end, go, lines_of, on
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.table import TURN
from tests.diagram.test_diagram_runs import exported
from tests.diagram.test_diagram_versions import TABLE_FILE
from tests.helpers.diagram_reading import missing_rows, read_strictly, unreadable, visible_text
from tests.helpers.diagram_tables import OTHER, SMALL, USUAL, coverage_of, steps
from tests.helpers.processes import ran
from tests.helpers.tables import courier

ROOT = Path(__file__).parents[2]
BOUND = "sends ≤ blocks·(1 + overflows + retries·(1 + rebuilds)) + repairs + rekeys + fallbacks"
PROOF = ("Every turn ends.", BOUND)
TABLES: list[tuple[Table, Layout | None]] = [(TURN, LAYOUT), (TURN, None), (SMALL, None), (courier(), None)]
each_table = pytest.mark.parametrize(
    ("table", "layout"), TABLES, ids=["own layout", "automatic", "small", "parcel"]
)


@cache
def proved(name: str) -> tuple[str, ...]:
    return proof_lines({"turn": TURN, "small": SMALL, "parcel": courier()}[name])


def scene(table: Table, layout: Layout | None) -> Scene:
    diagram = diagram_of(table, layout.get("ways_out") if layout else None)
    return scene_of(diagram, layout or automatic(diagram), proved(table.name) or PROOF)


def vocabulary(table: Table) -> set[str]:
    """Every event, every named rung and every exit, in words."""
    names = {words(row.event) for row in table.rows}
    names |= {row.rung for row in table.rows if row.exit is None and not row.rung.startswith("→")}
    return names | {words(row.exit) for row in table.rows if row.exit is not None}


@each_table
def test_every_name_is_in_every_text(table: Table, layout: Layout | None) -> None:
    texts = {
        "svg": visible_text(render(table, "svg", layout=layout)),
        "mermaid": render(table, "mermaid", layout=layout).replace("‹it›", "<it>").replace("do, <", "do; <"),
        "dot": render(table, "dot", layout=layout),
        "markdown": words(render(table, "markdown", layout=layout)),
    }
    missing = [(form, name) for form, text in texts.items() for name in vocabulary(table) if name not in text]
    assert missing == []


@each_table
def test_every_row_can_be_found_in_the_picture(table: Table, layout: Layout | None) -> None:
    root = ET.fromstring(render(table, "svg", layout=layout))
    lines = [row for e in root.iter() if "data-event" in e.attrib for row in e.attrib["data-rows"].split()]
    spans = [e.attrib.get("data-rows", "") for e in root.iter() if e.tag.endswith("tspan")]
    rungs = {row for rows in spans for row in rows.split()}
    arrows = {e.attrib["id"]: e.attrib["data-rows"].split() for e in root.iter() if "data-source" in e.attrib}
    assert sorted(lines) == sorted(row.id for row in table.rows)
    assert rungs == set(lines)
    for row in table.rows:
        assert row.exit is not None or row.id in arrows[f"arrow-{row.source}-{row.dest}"]
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    assert {f"state-{state}" for state in table.states} <= set(ids)


def test_json_and_markdown_hold_every_row() -> None:
    form = json.loads(render(TURN, "json"))
    assert [row["id"] for row in form["rows"]] == [row.id for row in TURN.rows]
    assert [row["guard"] for row in form["rows"]] == [row.guard.label for row in TURN.rows]
    lines = [(line.source, line.event) for line in TURN.lines]
    assert [(line["state"], line["event"]) for line in form["lines"]] == lines
    assert form["digest"] == TURN.digest
    text = render(TURN, "markdown")
    assert [text.count(f"| `{row.id}` |") for row in TURN.rows] == [1] * len(TURN.rows)
    assert "| **fallback** › **retry** › ⇥ *api_retries_exhausted* |" in text
    assert "| a first \\| word |" in render(SMALL, "markdown")
    with pytest.raises(ConfigError, match="given: png; allowed: mermaid, dot, svg, markdown, json"):
        render(TURN, "png")


@each_table
def test_nothing_stands_on_another_thing_and_text_stays_inside_its_box(
    table: Table, layout: Layout | None
) -> None:
    assert unreadable(scene(table, layout)) == []


def test_no_arrow_of_the_own_layout_runs_through_a_label_or_panel() -> None:
    picture = scene(TURN, LAYOUT)
    for placed in picture.arrows:
        others = [other.label for other in picture.arrows if other is not placed]
        for rect in (*others, *(panel.rect for panel in picture.panels)):
            assert not any(rect.holds(point, 2) for point in placed.path.points()), placed.arrow


def test_the_own_layout_is_complete_and_not_too_large() -> None:
    diagram = diagram_of(TURN, LAYOUT["ways_out"])
    assert set(LAYOUT["boxes"]) == set(TURN.states)
    assert set(LAYOUT["arrows"]) == {(arrow.source, arrow.dest) for arrow in diagram.arrows}
    assert scene(TURN, LAYOUT).size == LAYOUT["size"]
    assert LAYOUT["size"][0] <= 1600
    # only its ways out are arrows, and a long list refers to another one
    ways = [(arrow.source, arrow.labels) for arrow in diagram.arrows if arrow.way_out]
    assert ways == [("CallLLM", ("text", "summary"))]
    text = visible_text(render(TURN, "svg", layout=LAYOUT))
    ladder = "one retry › fallback › retry › rebuild › ⇥ api retries exhausted"
    assert [told for told in ("compact › as built", "nudge › as thought", ladder) if told not in text] == []


def test_a_table_brings_its_layout_along_and_stays_the_same_table() -> None:
    plain = courier()
    placed = replace(plain, layout=automatic(diagram_of(plain)), default_limits=lambda: {"tries": 1})
    assert (placed, placed.digest, repr(placed)) == (plain, plain.digest, repr(plain))
    assert render(placed, "svg", layout=placed.layout) == render(plain, "svg")


def test_a_layout_may_know_less_or_more_than_the_table() -> None:
    boxes = {state: place for state, place in LAYOUT["boxes"].items() if state != "Compress"}
    partial: Layout = {**LAYOUT, "boxes": {**boxes, "Gone": (0.0, 0.0, 9.0)}, "arrows": {}}
    picture = scene(TURN, partial)
    assert [placed.box.state for placed in picture.boxes] == list(TURN.states)
    assert len(picture.arrows) == len(diagram_of(TURN, LAYOUT["ways_out"]).arrows)
    assert picture.size[1] > LAYOUT["size"][1]


def test_wrapped_lines_keep_to_their_width() -> None:
    lines = wrap_text(PROOF[1], 200)
    assert " ".join(lines) == PROOF[1]
    assert all(text_width(line) <= 200 or " " not in line for line in lines)


@each_table
def test_every_rows_label_is_read_in_mermaid(table: Table, layout: Layout | None) -> None:
    assert missing_rows(table, read_strictly(render(table, "mermaid", layout=layout))) == []


def test_the_strict_reader_misses_what_mermaid_would_drop() -> None:
    text = render(TURN, "mermaid", layout=LAYOUT)
    for old, new, missed in (
        (": compress\n", ": com;press\n", ["overflow/2", "outgrown/2"]),
        ("⇥ output cap", "⇥ <output cap>", ["cap_unknown"]),
    ):
        found = missing_rows(TURN, read_strictly(text.replace(old, new)))
        assert found == [f"ClassifyError.{row}" for row in missed]


@each_table
def test_every_rows_label_and_guard_is_read_in_the_picture(table: Table, layout: Layout | None) -> None:
    """Each row has its rung or exit on the line of its event, inside the box of its state; the list of
    another event of the same box may be named instead, after "as". Its guard is what a pointer shows."""
    root = ET.fromstring(render(table, "svg", layout=layout))
    for row in table.rows:
        of_it = [e for e in root.iter() if row.id in e.get("data-rows", "").split()]
        lines = [e for e in of_it if e.get("data-event") == row.event]
        assert len(lines) == 1, row.id
        within = set(lines[0].iter())
        (text,) = {"".join(e.itertext()) for e in of_it if e in within and "span" in e.tag}
        rung = row.dest if row.rung == f"→ {row.dest}" else row.rung
        wanted = f"⇥ {words(row.exit)}" if row.exit else f"→ {rung}" if rung == row.dest else rung
        if text.startswith("as "):
            named = (e for e in root.iter() if words(e.get("data-event", "")) == text[3:])
            (other,) = (e for e in named if row.source in e.get("data-rows", ""))
            text = "".join(other.itertext())
            assert wanted in text, row.id
        else:
            assert text == wanted, row.id
        assert f"{row.id}: {row.rung} if {row.guard.label}" in "".join(lines[0].itertext())


@each_table
def test_texts_are_the_same_every_time_and_end_with_a_newline(table: Table, layout: Layout | None) -> None:
    for form in FORMATS:
        text = render(table, form, layout=layout)
        assert text == render(table, form, layout=layout)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert "\r" not in text


def test_the_proofs_have_a_panel_of_their_own() -> None:
    assert "Proved for every setting" not in render(TURN, "svg", layout=LAYOUT)
    text = visible_text(render(TURN, "svg", layout=LAYOUT, proof_lines=PROOF))
    assert "Proved for every setting" in text
    assert PROOF[0] in text


def test_only_what_is_proved_is_shown() -> None:
    checks, *bounds = proved("turn")
    assert "every turn ends" in checks
    assert bounds[0].startswith("visits of CallLLM ≤ ")
    again = (on("again", go("Loop"), why="forever"), on("said", end("answered", "Done"), why="or not"))
    assert proof_lines(Table("endless", ("Loop", "Done"), "Done", (), lines_of({"Loop": again}))) == ()


@pytest.mark.behaviour("FSM-09")
def test_a_changed_or_missing_file_is_stale(tmp_path: Path) -> None:
    fresh = files(SMALL)
    pictures = [f"small.{ending}" for ending in FORMATS.values()]
    assert list(fresh) == [*pictures, "small-map.svg", "small.proofs.md"]
    assert write(tmp_path / "new", fresh) == list(fresh)
    assert stale(tmp_path / "new", fresh) == []
    (tmp_path / "new" / "small.svg").write_text("<svg/>")
    (tmp_path / "new" / "small.md").unlink()
    assert stale(tmp_path / "new", fresh) == ["small.svg", "small.md"]
    assert write(tmp_path / "new", fresh) == ["small.svg", "small.md"]


def test_a_busy_machine_writes_the_same_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which an hour passes between any two looks at the clock."""
    hours = count(0, 3_600)
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    kept = ROOT / "examples/diagrams/order/order.proofs.md"
    assert proof_page(order.TABLE, order.LIMITS) == kept.read_text(encoding="utf-8")


def test_the_command_writes_checks_and_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ["--table", "tests.helpers.diagram_tables:SMALL"]
    assert main(["--check", str(tmp_path), *table]) == 1
    assert "stale:" in capsys.readouterr().out
    assert main([str(tmp_path), *table]) == 0
    assert {file.name for file in tmp_path.iterdir()} == set(files(SMALL))
    assert main(["--check", str(tmp_path), *table]) == 0
    assert main([str(tmp_path), *table, "--limits", "tests.helpers.diagram_tables:SMALL_LIMITS"]) == 0
    assert "Figures are for asks 2, acts 3, fixes 1." in (tmp_path / "small.proofs.md").read_text()
    assert main([str(tmp_path), "--table", "fsm_agent_states.table:NOTHING"]) == 2
    assert main([str(tmp_path), "--table", "fsm_agent_states.table:BLOCK"]) == 2
    assert "given: fsm_agent_states.table:BLOCK" in capsys.readouterr().err
    assert main([str(tmp_path), *table, "--limits", "fsm_agent_states.table:BLOCK"]) == 2
    assert "these are not limits" in capsys.readouterr().err
    assert main([str(tmp_path), *table, "--limits", "tests.helpers.tables:DEFAULTS"]) == 2
    assert "limits are missing; given: acts, asks, fixes" in capsys.readouterr().err


EACH = [(table, state) for table in (TURN, SMALL, courier()) for state in table.states]
each_state = pytest.mark.parametrize(
    ("table", "state"), EACH, ids=[f"{table.name} {state}" for table, state in EACH]
)


@each_state
def test_every_row_is_there_with_its_guard(table: Table, state: str) -> None:
    diagram = neighbourhood(table, state)
    svg = written(diagram, "svg", around(diagram, state))
    root, text = ET.fromstring(svg), visible_text(svg)
    for row in table.rows:
        if row.source == state:
            lines = (e for e in root.iter() if e.get("data-event"))
            (line,) = (e for e in lines if row.id in e.get("data-rows", "").split())
            told = ("".join(e.itertext()) for e in line.iter() if e.tag.endswith("}text"))
            shown = " ".join(" ".join(told).split())
            assert row.guard.label == "always" or f"if {row.guard.label}" in shown
            assert words(row.exit) in shown if row.exit else row.rung.removeprefix("→ ") in shown
            assert all(words(counter) in text for counter in row.spends)
    arrows = {e.attrib["id"]: e.attrib["data-rows"].split() for e in root.iter() if "data-source" in e.attrib}
    expected = {row.id for row in table.rows if state in (row.source, row.dest)}
    assert {row for rows in arrows.values() for row in rows} == expected
    assert {e.get("data-state") for e in root.iter()} - {None} == {state} | {
        end for row in table.rows if row.id in expected for end in (row.source, row.dest)
    }


@each_state
def test_nothing_stands_on_another_thing(table: Table, state: str) -> None:
    diagram = neighbourhood(table, state)
    picture = scene_of(diagram, around(diagram, state))
    assert unreadable(picture) == []
    assert picture.size[0] <= COLUMN * 13 / 11, "its text has 11 pixels in a column of a page"


def test_its_mermaid_has_each_row_on_a_line() -> None:
    seen = read_strictly(written(neighbourhood(TURN, "ClassifyError"), "mermaid"))
    assert set(seen.lines) == {"ClassifyError", "BuildMessages", "CallLLM", "Compress", "Finalize"}
    assert (
        "limited – retry if no fallbacks left and retries left, spends retries" in seen.lines["ClassifyError"]
    )
    assert len(seen.lines["ClassifyError"]) >= sum(row.source == "ClassifyError" for row in TURN.rows)


def test_its_texts_have_the_rows_out_and_in() -> None:
    text, rows = near_markdown(TURN, "Compress"), TURN.rows
    out, _, into = text.partition("## In")
    assert [row.id for row in rows if f"| `{row.id}` |" in out] == [
        r.id for r in rows if r.source == "Compress"
    ]
    comes = [row.id for row in rows if row.dest == "Compress" != row.source]
    assert [row.id for row in rows if f"| `{row.id}` |" in into] == comes
    assert text.count("| `") == len(set(re.findall(r"\| `[^`]+` \|", text)))
    value = json.loads(near_json(neighbourhood(TURN, "ExecuteTools"), "ExecuteTools"))
    assert [row["id"] for row in value["out"]] == [row.id for row in rows if row.source == "ExecuteTools"]
    assert "ExecuteTools.bad_json/2" not in [row["id"] for row in value["in"]]


def test_an_unknown_state_is_refused_with_the_names_of_the_others() -> None:
    others = "allowed: Start, Think, Act, Check, Done"
    with pytest.raises(ConfigError, match=f"no such state; given: Nowhere; {others}"):
        neighbourhood(SMALL, "Nowhere")


Cli = Callable[..., tuple[int, str, str]]
TASKS = [{"goal": "sub task one"}, {"goal": "sub task two"}]


def provider(body: dict[str, Any]) -> Any:
    last = body["messages"][-1]
    if last["role"] == "user" and "sub task" in str(last["content"]):
        return text("found it")
    return text("all done") if last["role"] == "tool" else tools(call("delegate_task", {"tasks": TASKS}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def session(home: Path) -> str:
    """A session whose one turn had two children."""
    options = {"store": store_for(home, "normal"), "clock": FakeClock(), "toolsets": ["delegate"]}
    agent = Agent(ScriptedModel(repeat(provider)), home=home, **options)
    agent.run_conversation("divide the work")
    return agent.session_id


def test_children_of_a_turn_are_told_and_have_their_moves(session: str, cli: Cli) -> None:
    told = cli("diagram", "--overlay", session, "-f", "md")[1]
    for number in ("one", "two"):
        assert f"## ExecuteTools began “sub task {number}” after move 3: 3 moves," in told
    assert told.count("| 3 | `CallLLM.text` | Finalize |") == 2
    picture = visible_text(cli("diagram", "--overlay", session, "-f", "svg")[1]).replace("\n", " ")
    assert "ExecuteTools began “sub task one” after move 3: 3 moves," in picture
    assert "6 moves, " in picture
    value = json.loads(cli("diagram", "--overlay", session, "-f", "json")[1])
    assert value["moves"] == 6
    assert [(child["asked"], child["at"], child["exit"]) for child in value["children"]] == [
        (task["goal"], 3, "text_response") for task in TASKS
    ]
    assert value["children"][0]["path"] == ["Prepare.ready", "BuildMessages.built/3", "CallLLM.text"]


def test_the_export_of_a_session_has_the_same_children(session: str, home: Path, cli: Cli) -> None:
    file = home / "session.jsonl"
    file.write_text(cli("sessions", "export", session)[1])
    (run,) = runs_of(str(file))
    assert [(child.asked, child.at, len(child.steps)) for child in run.children] == [
        (task["goal"], 3, 3) for task in TASKS
    ]
    assert "after move 3: 3 moves" in cli("diagram", "--overlay", str(file), "-f", "md")[1]
    covered = json.loads(cli("diagram", "--coverage", str(file), "-f", "json")[1])
    assert covered["moves"] == 6 + 2 * 3


def test_what_a_nested_table_did_is_drawn_in_its_frame(home: Path, cli: Cli) -> None:
    workflow = nested.workflow(home)
    workflow.start(nested.Visit(["lamp"])).run()
    (outer,) = workflow.journal.recent(5, table="shop")
    source = ("diagram", "examples.nested:TABLE", "--overlay", outer.id)
    picture = cli(*source, "-f", "svg")[1]
    inner = picture[picture.index('<g class="nested"') :]
    assert "×1" in inner
    assert 'class="arrow t0 unused"' in inner or " unused" in inner
    assert "Order began" in visible_text(picture)
    (child,) = json.loads(cli(*source, "-f", "json")[1])["children"]
    assert (child["table"], child["exit"]) == ("order", "sent")


def test_turns_that_name_each_other_end(tmp_path: Path) -> None:
    move = {"kind": "move", "source": "a", "event": "b", "dest": "c", "row": "d", "seconds": 0, "seq": 1}
    circle = [("a", "b"), ("b", "c"), ("c", "a")]
    lines: list[dict[str, Any]] = [{"kind": "fsm-agent", "of": "turn", "id": "a"}]
    lines += [{"kind": "turn", "id": name, "parent": parent} for name, parent in circle]
    lines += [move | {"turn": name} for name, _ in circle]
    file = tmp_path / "circle.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    (run,) = runs_of(str(file))
    assert [one.id for one in (run, *run.below())] == ["a", "c", "b"]


# The command line


@pytest.mark.parametrize("form", ["mermaid", "dot", "svg", "md", "json"])
def test_every_view_has_every_format(form: str, cli: Cli, tmp_path: Path) -> None:
    source = exported(tmp_path / "turn.jsonl", ("a", steps(TURN, USUAL)))
    for view in (["--state", "CallLLM"], ["--overlay", source], ["--coverage", source, "--coverage", source]):
        code, out, err = cli("diagram", "--format", form, *view)
        assert (code, err) == (0, "")
        if form == "svg":
            ET.fromstring(out)
        if form == "json":
            json.loads(out)
        assert "CallLLM" in out
    assert cli("diagram", "show", "--format", form) == cli("diagram", "-f", form)


def test_a_table_of_the_users_own_has_every_view(cli: Cli, tmp_path: Path) -> None:
    name = "tests.helpers.diagram_tables:SMALL"
    (tmp_path / "rows.json").write_text(json.dumps({"table": "small", "rows": {"Act.ok": 3}}))
    near = cli("diagram", name, "--state", "Check")[1]
    assert "Check --> Think : ask" in near
    assert "Act" not in near
    text = visible_text(cli("diagram", name, "--coverage", str(tmp_path / "rows.json"), "-f", "svg")[1])
    assert "→ Think ×3" in text
    assert "1 of 4 rows" in text
    assert "1 of 16 rows (6 %) taken by 3 moves." in text


def test_the_exit_code_is_that_of_git_diff(cli: Cli, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one.json"), str(tmp_path / "other.json")
    for table, file in ((SMALL, one), (OTHER, other)):
        Path(file).write_text(render(table, "json"))
    assert cli("diagram", "diff", one, one, "--exit-code")[0] == 0
    code, out, err = cli("diagram", "diff", one, other)
    assert (code, err) == (0, "")
    assert "1 row removed, 1 row changed" in out
    assert cli("diagram", "diff", one, other, "--exit-code")[0] == 1
    assert json.loads(cli("diagram", "diff", one, other, "--json")[1])["changed"] is True
    figures = cli(
        "diagram", "diff", one, other, *(f"--set={limit}=2" for limit in ("asks", "acts", "fixes"))
    )[1]
    assert re.search(r"\| moves, without caps \| \d+ \| \d+ \|", figures)
    for form in ("mermaid", "svg"):
        assert "give back" in cli("diagram", "diff", one, other, "--format", form)[1]


# Actions and hooks


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.slow
def test_the_hooks_run_what_is_there(tmp_path: Path) -> None:
    hooks = {hook["id"]: hook for hook in load(ROOT / ".pre-commit-hooks.yaml")}
    assert set(hooks) == {"fsm-agent-diagrams", "fsm-agent-verify"}
    for hook in hooks.values():
        assert {"id", "name", "entry", "language", "pass_filenames"} <= set(hook)
        assert hook["pass_filenames"] is False
    used = load(ROOT / "examples" / "github" / "pre-commit-config.yml")["repos"][0]["hooks"]
    assert {hook["id"] for hook in used} == set(hooks)
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "table.py").write_text(TABLE_FILE.replace("LOOP =", "TABLE ="))

    def run(name: str) -> int:
        """As pre-commit does, in the project's folder."""
        arguments = next(hook["args"] for hook in used if hook["id"] == name)
        first, *words = [*shlex.split(hooks[name]["entry"]), *arguments]
        module = ["-m", "fsm_agent"] if first == "fsm-agent" else []
        return ran(*module, *words, cwd=tmp_path).returncode

    assert run("fsm-agent-diagrams") == 1
    made = ran("-m", "fsm_agent.diagram", "diagrams", "--table=mypackage.table:TABLE", cwd=tmp_path)
    assert made.returncode == 0
    assert run("fsm-agent-diagrams") == 0
    assert run("fsm-agent-verify") == 0


@pytest.mark.parametrize("name", ["diagram-diff", "backtest"])
def test_an_action_and_its_workflow_fit_together(name: str) -> None:
    folder = ROOT / ".github" / "actions" / name
    action, workflow = load(folder / "action.yml"), load(ROOT / "examples" / "github" / f"{name}.yml")
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "values come through the environment, never into a script"
        for script in re.findall(r"\$GITHUB_ACTION_PATH/([\w./]+)", step["run"]):
            assert (folder / script).is_file()
    (job,) = workflow["jobs"].values()
    (used,) = (step for step in job["steps"] if name in step["uses"])
    assert used["uses"].split("@")[0].endswith(str(folder.relative_to(ROOT)))
    assert set(used["with"]) <= set(action["inputs"])
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert list(workflow[True]) == [
        "pull_request"
    ]  # YAML 1.1 reads the word "on" so; never pull_request_target


# Graphviz


@pytest.mark.parametrize("table", [TURN, SMALL, courier()], ids=lambda table: table.name)
def test_dot_says_the_same_and_is_plain(table: Table) -> None:
    text = render(table, "dot").replace('\\"', "''")
    assert "label=<" not in text
    assert [name for name in vocabulary(table) if name not in text] == []
    marked = written(coverage_of(table) if table is TURN else coverage_of(TURN), "dot")
    assert "style=dashed" in marked
    assert "penwidth=" in marked


@pytest.mark.slow
@pytest.mark.parametrize("table", [TURN, SMALL, courier()], ids=lambda table: table.name)
def test_graphviz_draws_every_rows_label(table: Table) -> None:
    svg = lay_out(render(table, "dot"))
    text = visible_text(svg).replace("\u00a0", " ")
    assert [name for name in vocabulary(table) if name not in text] == []
    assert {state for state in table.states if state not in text} == set()
    assert "Courier" not in svg
    assert 'font-family="DejaVu Sans, Verdana, sans-serif"' in svg
    assert words("gave_up") in text or table is not SMALL


@pytest.mark.slow
def test_graphviz_says_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match="graphviz cannot draw this"):
        lay_out("digraph {")
