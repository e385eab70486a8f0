"""Two versions of a table compared: rows, proofs, bounds; loaded from git, from files, from the working
tree."""

from __future__ import annotations

import json
import os
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from fsm_agent.diagram import render, written
from fsm_agent.diagram.layout import automatic, roomy
from fsm_agent.diagram.scene import scene_of
from fsm_agent.diagram.table_json import describe, expands_alike, table_from
from fsm_agent.diagram.versions import Version, version_of
from fsm_agent.diagram.versions.compare import compare, merge_order, proofs
from fsm_agent.diagram.versions.rendering import as_diff_json, as_diff_markdown
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.properties import at_most, eventually, exits, rung
from fsm_agent.fsm.table import Counter, Rung, Table, all_of, end, go, left, lines_of, on
from fsm_agent.fsm.verify import verify_table
from fsm_agent.fsm.verify.reach import limit_names
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.table import BLOCK, TURN
from tests.helpers.diagram_reading import read_strictly, unreadable, visible_text
from tests.helpers.diagram_tables import LIMITS, SMALL, changed_pair, plain, proved, united_of
from tests.helpers.tables import courier

# Describing


@pytest.mark.parametrize("table", [TURN, SMALL, courier()], ids=lambda table: table.name)
def test_a_description_gives_the_same_table_again(table: Table) -> None:
    for value in (
        describe(table),
        json.loads(json.dumps(describe(table))),
        json.loads(render(table, "json")),
    ):
        again = table_from(value, "here")
        assert (again.digest, again.rows) == (table.digest, table.rows)
        assert (again.reset_groups, again.properties) == (table.reset_groups, table.properties)
        assert expands_alike(again, value)


def test_a_property_that_is_not_proved_any_more_is_a_finding() -> None:
    """Also one that is taken away, and none for what is as it was."""
    often = at_most("Rings within its limit.", "rings", rung("ring"))
    lost = eventually("Is delivered.", exits("delivered"), known="the house may be empty")
    old = replace(courier(), properties=(often, lost))
    lines = tuple(replace(line, resets=("rings",)) if line.event == "broken" else line for line in old.lines)
    new, gone = replace(old, lines=lines), replace(old, properties=(lost,))
    told = [
        as_diff_markdown(Version("old", old), Version("new", one), compare(old, one), found)
        for one in (new, gone, old)
        if (found := proofs(Version("old", old), Version("new", one)))
    ]
    assert "- **property: Rings within its limit.**: Rings within" in told[0]
    assert "Drive.broken/1" in told[0]
    assert "- **property: Rings within its limit.**: was proved, and is claimed no more" in told[1]
    assert not any("property" in text for text in told[2:])
    assert "Is delivered" not in "".join(told)


def test_certificates_of_both_versions_are_checked() -> None:
    """A line that tests more budgets than the checker takes: proved, and not to be checked any more."""
    old = courier()
    names = [f"c{number}" for number in range(13)]
    many = on("slow", Rung("again", "Pack", all_of(map(left, names)), ("c0",)), end("late", "Done"), why="")
    counters = (*old.counters, *map(Counter, names))
    new = replace(old, counters=counters, lines=(*old.lines, *lines_of({"Pack": [many]})))
    found = proofs(Version("old", old), Version("new", new))
    assert (found.old_ok, found.new_ok) == (True, True)
    accepted = {name: (before, after) for name, before, after in found.checks if "certificate" in name}
    assert [*accepted.values()] == [((), ("Pack.slow: tests too many budgets",))]


@pytest.mark.parametrize(
    "value", [None, [], {}, {"name": "x"}, {**describe(SMALL), "lines": [{"state": "Start"}]}]
)
def test_what_is_no_description_is_one_line(value: object) -> None:
    with pytest.raises(ConfigError, match=r"not a complete description of a table .*given: here"):
        table_from(value, "here")
    with pytest.raises(ConfigError, match=r"the table is wrong .*unknown state"):
        table_from({**describe(SMALL), "states": ["Start", "Done"], "macros": []}, "here")


# Comparing


def turn_with(**lines: object) -> Table:
    """The turn's table with lines, ``State__event``, replaced by changes of them."""
    found = {f"{line.source}__{line.event}": line for line in TURN.lines}
    return replace(TURN, lines=tuple(replace(line, **lines.get(name, {})) for name, line in found.items()))


def test_a_table_is_as_itself() -> None:
    difference = compare(TURN, TURN)
    assert not difference.changed
    assert {line.change for line in difference.lines} == {"kept"}
    assert not proved(TURN, TURN).changed


@pytest.mark.behaviour("FSM-09")
def test_a_rung_put_in_front_changes_the_guards_behind_it_and_no_more() -> None:
    rekey = next(rung for line in TURN.lines for rung in line.ladder if rung.name == "rekey")
    places = [(line.source, line.event) for line in TURN.lines]
    ladder = TURN.lines[places.index(("ClassifyError", "limited"))].ladder
    new = turn_with(ClassifyError__limited={"ladder": (rekey, *ladder)})
    rows = compare(TURN, new).rows
    assert [(row.change, row.own, row.row.id, row.row.rung) for row in rows] == [
        ("added", True, "ClassifyError.limited/1", "rekey"),
        ("changed", False, "ClassifyError.limited/2", "fallback"),
        ("changed", False, "ClassifyError.limited/3", "retry"),
        ("changed", False, "ClassifyError.limited/4", "⇥ api_retries_exhausted"),
    ]
    back = compare(new, TURN).rows
    assert [(row.change, row.row.rung) for row in back][:2] == [("removed", "rekey"), ("changed", "fallback")]


def test_each_kind_of_change_is_told_as_what_it_is() -> None:
    end_row = ("exit", "gave_up", "lost")
    by_event = {line.event: line for line in SMALL.lines}
    ask, (act, too_long) = by_event["blank"].ladder[0], by_event["act"].ladder
    changes: dict[str, dict[str, object]] = {
        "blank": {"ladder": (replace(ask, spends=()), end("lost", "Done"))},
        "act": {"ladder": (replace(act, to="Check", needs=left("acts", "deeds")), too_long)},
        "ok": {"resets": ("fixes",)},
        "bad": {"event": "fails"},
    }
    new = replace(
        SMALL,
        lines=tuple(replace(line, **changes.get(line.event, {})) for line in SMALL.lines),
        counters=(*SMALL.counters[1:], Counter("asks", cap=True), Counter("more")),
    )
    difference = compare(SMALL, new)
    told = {(row.change, row.row.id): row.fields for row in difference.rows}
    assert told["changed", "Think.blank/1"] == (("spends", "asks", ""),)
    assert told["changed", "Think.blank/2"] == (end_row,)
    assert ("to", "Act", "Check") in told["changed", "Think.act/1"]
    guards = [after for name, _, after in told["changed", "Think.act/1"] if name == "guard"]
    assert any("acts (deeds) left" in after for after in guards)
    assert told["changed", "Act.ok"] == (("resets", "", "fixes"),)
    renamed = [line.change for line in difference.lines if line.event in ("bad", "fails")]
    assert renamed == ["removed", "added"]
    names = {(name.kind, name.name, name.change) for name in difference.names}
    assert names == {("counter", "asks", "changed"), ("counter", "more", "added")}
    assert difference.count("added") == difference.count("removed") == 2
    assert difference.count("changed", "Think") == 3 + 1


def test_rungs_that_change_places_are_not_removed_and_added() -> None:
    ladder = (go("Think"),)
    lines = tuple(replace(line, ladder=ladder) if line.event == "bad" else line for line in SMALL.lines)
    assert [row.change for row in compare(SMALL, replace(SMALL, lines=lines)).rows] == ["removed", "changed"]
    old, new = changed_pair()
    limited = [(row.change, row.row.rung) for row in compare(old, new).rows if row.row.event == "limited"]
    changed = [("changed", rung) for rung in ("retry", "fallback", "⇥ api_retries_exhausted")]
    assert limited == [changed[0], ("added", "rekey"), *changed[1:]]


@pytest.mark.slow
def test_every_small_change_of_a_line_is_seen() -> None:
    """Lines without their last rung, with their rungs turned round, with another reset, led elsewhere,
    spending nothing; each seen in the rows of that line and nowhere else."""
    seen = 0
    for number, line in list(enumerate(TURN.lines))[::4]:
        first, *others = line.ladder
        for changed in (
            replace(line, ladder=line.ladder[:-1] or (go("CallLLM"),)),
            replace(line, ladder=line.ladder[::-1]),
            replace(line, resets=("attempts",)),
            replace(line, ladder=(replace(first, to="Prepare", exit=None), *others)),
            replace(line, ladder=(replace(first, spends=()), *others)),
        ):
            other = replace(TURN, lines=(*TURN.lines[:number], changed, *TURN.lines[number + 1 :]))
            rows = compare(TURN, other).rows
            assert {(row.row.source, row.row.event) for row in rows} <= {(line.source, line.event)}
            assert bool(rows) == (other.rows != TURN.rows), changed
            seen += bool(rows)
    assert seen > 45


def test_what_only_the_old_has_is_put_where_it_was() -> None:
    assert merge_order("abcd", "axd") == ["a", "b", "c", "x", "d"]
    assert merge_order("ab", "") == ["a", "b"]
    assert merge_order("xab", "b") == ["x", "a", "b"]


# Proofs and bounds


def less_rekeys(resets: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in resets if name != "rekeys")


OLDER = replace(
    TURN,
    lines=tuple(replace(line, resets=less_rekeys(line.resets)) for line in TURN.lines),
    reset_groups={**TURN.reset_groups, "BLOCK": less_rekeys(BLOCK)},
)
"""The table before a reply gave the rekeys back: one word in one line of the file."""


@pytest.mark.slow
def test_a_one_word_reset_shows_up_in_the_formula() -> None:
    found = proved(OLDER, TURN)
    (requests,) = (one for one in found.bounds if (one.quantity, one.caps) == ("visits of CallLLM", False))
    assert (requests.old_value, requests.new_value, requests.by) == (2424, 2786, "+ blocks·rekeys − rekeys")
    assert found.old_ok
    assert found.new_ok
    assert found.old_ranking == found.new_ranking, "a fallback gives them back in both"
    text = as_diff_markdown(Version("old", OLDER), Version("new", TURN), compare(OLDER, TURN), found)
    assert "| visits of CallLLM, without caps | 2,424 | 2,786 | `+ blocks·rekeys − rekeys` |" in text
    assert "| ~ | `CallLLM.tools` | → ExecuteTools | ExecuteTools | resets + rekeys |" in text


@pytest.mark.slow
def test_a_counter_that_is_given_back_loses_its_place_in_the_ranking() -> None:
    """In the older version neither a reply nor a fallback gave the rekeys back."""
    kept = tuple(
        replace(line, ladder=tuple(replace(rung, resets=less_rekeys(rung.resets)) for rung in line.ladder))
        for line in OLDER.lines
    )
    oldest = replace(OLDER, lines=kept)
    found = proved(oldest, TURN)
    assert (found.old_ok, found.new_ok) == (True, True)
    assert found.old_ranking[0].endswith(
        "iterations, free_rounds, summary_calls, lost_requests, fallbacks, rekeys"
    )
    assert found.new_ranking[0].endswith("iterations, free_rounds, summary_calls, lost_requests, fallbacks")
    text = as_diff_markdown(Version("old", oldest), Version("new", TURN), compare(oldest, TURN), found)
    assert "## Ranking, the proof that every turn ends" in text


@pytest.mark.slow
def test_the_formula_changes_by_the_difference_of_the_figures() -> None:
    """The printed difference, worked out, is the difference of what the two formulas give."""
    found = proved(OLDER, TURN)
    given = [
        {(f.quantity, f.caps): f.by_formula for f in verify_table(t, LIMITS, small=False).figures}
        for t in (OLDER, TURN)
    ]
    names = {**LIMITS, "blocks": LIMITS["iterations"] + LIMITS["free_rounds"] + LIMITS["summary_calls"]}
    told = [bound for bound in found.bounds if bound.by]
    assert len(told) >= 2
    for bound in told:
        value = eval(bound.by.replace("·", "*").replace("−", "-"), {"__builtins__": {}}, names)
        before, after = (numbers[bound.quantity, bound.caps] for numbers in given)
        assert before is not None
        assert after is not None
        assert value == after - before, bound.quantity


def test_figures_of_a_table_of_the_users_own_need_all_limits() -> None:
    two = Version("old", SMALL), Version("new", SMALL)
    assert proofs(*two).bounds[0].new_value is None
    whole = proofs(*two, dict.fromkeys(limit_names(SMALL), 2))
    assert all(bound.new_value is not None for bound in whole.bounds)
    first, *others = limit_names(SMALL)
    with pytest.raises(ConfigError, match="unknown limit; given: speed"):
        proofs(*two, {"speed": 3})
    with pytest.raises(ConfigError, match=f"limits are missing.*{', '.join(sorted(others))}"):
        proofs(*two, {first: 2})


@pytest.mark.slow
def test_a_version_that_does_not_end_is_named_with_the_fix() -> None:
    def free(rung: Rung) -> Rung:
        return replace(rung, spends=()) if rung.name == "rebuild" else rung

    lines = tuple(replace(line, ladder=tuple(map(free, line.ladder))) for line in TURN.lines)
    endless = replace(TURN, lines=lines)
    found = proved(TURN, endless)
    assert (found.old_ok, found.new_ok) == (True, False)
    text = as_diff_markdown(Version("old", TURN), Version("new", endless), compare(TURN, endless), found)
    assert "**the new version is not proved any more**" in text
    assert "ClassifyError.unreachable/4: can repeat without end" in text
    assert "| visits of CallLLM, without caps | 2,786 | – |  |" in text
    assert "visits of CallLLM: no bound" in visible_text(written(united_of(TURN, endless), "svg"))


# Showing


def marked(root: ET.Element, name: str) -> dict[str | None, str]:
    """The last class of each element with this attribute, by its value."""
    return {e.get(name): (e.get("class") or "").split()[-1] for e in root.iter() if e.get(name)}


@pytest.mark.slow
def test_the_picture_marks_what_came_went_and_changed() -> None:
    svg = written(united := united_of(), "svg", roomy(LAYOUT, plain(TURN), united))
    root, text = ET.fromstring(svg), visible_text(svg)
    marks = marked(root, "data-state")
    assert marks["ClassifyError"] == marks["CallLLM"] == "changed"
    assert {marks[state] for state in TURN.states if state not in ("ClassifyError", "CallLLM")} == {"kept"}
    assert "retry › + rekey › fallback › ⇥ api retries exhausted" in text
    assert "− cap unknown" in text
    assert "~ → ExecuteTools (resets + repairs)" in " ".join(text.split()), (
        "on two lines, where the box was made for one"
    )
    assert "+1 −1 ~3" in text
    assert "~ tools" in text
    spans = (e for e in root.iter() if e.tag.endswith("}tspan"))
    removed = [e for e in spans if "removed" in (e.get("class") or "").split()]
    old_order = ["fallback", "retry", "⇥ api retries exhausted"]
    assert ["".join(e.itertext()) for e in removed] == [*old_order, "⇥ output cap"]
    assert all(not e.get("data-rows") for e in removed)


def test_states_that_came_or_went_are_in_the_picture() -> None:
    extra = lines_of({"Think": [on("tired", go("Rest"), why="")], "Rest": [on("fresh", go("Think"), why="")]})
    rest = Rung("rest", "Rest", left("acts"), ("acts",))
    lines = [
        replace(line, ladder=(rest, *line.ladder)) if line.event == "blank" else line for line in SMALL.lines
    ]
    new = replace(SMALL, states=("Start", "Think", "Act", "Rest", "Done"), lines=(
        *(line for line in lines if line.source != "Check" and line.event != "review"), *extra[1:],
    ))  # fmt: skip
    svg = written(united_of(SMALL, new), "svg")
    root = ET.fromstring(svg)
    marks = marked(root, "data-state")
    kept = dict.fromkeys(("Start", "Act", "Done"), "kept")
    assert marks == {**kept, "Think": "changed", "Check": "removed", "Rest": "added"}
    arrows = {e.get("id"): (e.get("class") or "").split()[-1] for e in root.iter() if e.get("data-source")}
    assert (arrows["arrow-Think-Rest"], arrows["arrow-Think-Check"]) == ("added", "removed")
    seen = read_strictly(written(united_of(SMALL, new), "mermaid"))
    assert seen.arrows["Think", "Rest"] == "+ rest"
    assert "Act" not in seen.lines


PAIRS = [
    ("turn", changed_pair()), ("reset", (OLDER, TURN)), ("small", (SMALL, courier())), ("same", (TURN, TURN)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [pair for _, pair in PAIRS], ids=[name for name, _ in PAIRS])
def test_nothing_covers_another_thing(old: Table, new: Table) -> None:
    united = united_of(old, new)
    layout = roomy(LAYOUT, plain(TURN), united) if new.name == "turn" else automatic(united)
    assert unreadable(scene_of(united, layout)) == []


def test_json_has_every_changed_row() -> None:
    old, new = changed_pair()
    a, b = Version("a", old, LIMITS), Version("b", new, LIMITS)
    difference = compare(old, new)
    value = json.loads(as_diff_json(a, b, difference, proved(old, new)))
    assert value["changed"] is True
    assert [row["id"] for row in value["rows"]["added"]] == ["ClassifyError.limited/2"]
    assert [row["id"] for row in value["rows"]["removed"]] == ["ClassifyError.cap_unknown"]
    assert {"old": "CallLLM.tools", "new": "CallLLM.tools", "own": True, "fields": {
        "resets": [", ".join(sorted(BLOCK)), ", ".join(sorted((*BLOCK, "repairs")))],
    }} in value["rows"]["changed"]  # fmt: skip
    assert {bound["quantity"] for bound in value["bounds"]} >= {"visits of CallLLM", "moves"}


def test_no_change_is_one_sentence() -> None:
    same = Version("a", TURN), Version("b", TURN)
    text = as_diff_markdown(*same, compare(TURN, TURN), proved(TURN, TURN))
    assert text == "# The turn table: a → b\n\nNo row changed; every turn still ends.\n"


# Loading

TABLE_FILE = """
from fsm_agent.fsm.table import Counter, Rung, Table, end, left, lines_of, on

again = Rung("again", "Ask", left("tries"), ("tries",))
LOOP = Table(
    name="loop", states=("Ask", "Done"), final="Done", counters=(Counter("tries"),),
    lines=lines_of({"Ask": [
        on("bad", again, end("gave_up", "Done"), why="try again"),
        on("good", end("answered", "Done"), why="answered"),
    ]}),
)
"""
QUIET = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def git(folder: Path, *arguments: str) -> str:
    user = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *user, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=QUIET)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: a table in a package, then the same with another exit; and a change that is not
    committed."""

    package = tmp_path / "loops"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "names.py").write_text('EXIT = "gave_up"\n')
    (package / "table.py").write_text("from .names import EXIT\n" + TABLE_FILE.replace('"gave_up"', "EXIT"))
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=one")
    (package / "names.py").write_text('EXIT = "tired"\n')
    git(tmp_path, "commit", "--quiet", "--all", "--message=two")
    git(tmp_path, "tag", "v2")
    (package / "names.py").write_text('EXIT = "left"\n')
    return tmp_path


def exit_of(version: Version) -> str | None:
    return version.table.row("Ask.bad/2").exit


def test_revisions_files_and_the_working_tree_are_told_apart(repository: Path) -> None:
    told = {"gave_up": "HEAD~1 HEAD~1:loops/table.py", "tired": "main v2 v2:loops/table.py:LOOP"}
    told["left"] = ". loops/table.py loops/table.py:LOOP loops.table:LOOP"
    for exit, spec in ((exit, spec) for exit, specs in told.items() for spec in specs.split()):
        target = None if "/" in spec or ":" in spec else "loops.table:LOOP"
        assert exit_of(version_of(spec, target, folder=repository)) == exit, spec
    inside = version_of("HEAD~1", "loops.table:LOOP", folder=repository / "loops")
    assert exit_of(inside) == "gave_up"


def test_a_description_in_a_file_is_a_version_too(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(render(SMALL, "json"))
    assert version_of("small.json", folder=tmp_path).table.rows == SMALL.rows
    rest = '"resets": [], "exit": null'
    damaged = render(SMALL, "json").replace(f'"spends": ["asks"], {rest}', f'"spends": [], {rest}')
    for text, says in ((damaged, "do not fit together"), ("{", "cannot read it")):
        (tmp_path / "small.json").write_text(text)
        with pytest.raises(ConfigError, match=says):
            version_of("small.json", folder=tmp_path)


def test_the_turn_of_this_project_is_the_default() -> None:
    version = version_of("fsm_agent_states.table:TURN", folder=Path(__file__).parents[2])
    assert version.table.digest == TURN.digest
    assert version.limits is not None
    assert version.limits["iterations"] == 90
    assert version.limits["fallbacks"] == version.limits["rekeys"] == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        pytest.param("import nothing_of_this_name", "No module named 'nothing_of_this_name'",
                     marks=pytest.mark.slow),
        ("raise SystemExit(0)", "cannot be loaded (SystemExit: 0)"),
        pytest.param("LOOP = 3", "is not a transition table", marks=pytest.mark.slow),
        ("import sys; sys.stdout.write('noise')\n" + TABLE_FILE.replace('(Counter("tries"),)', "()"),
         "unknown counter"),
        pytest.param("def f(:", "SyntaxError", marks=pytest.mark.slow),
        pytest.param("import os; os._exit(3)", "cannot be loaded (no reason given)", marks=pytest.mark.slow),
        ("while True: pass", "took longer than 0.7 seconds"),
    ],
)  # fmt: skip
def test_code_that_cannot_be_imported_is_one_line(code: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "table.py").write_text(code)
    with pytest.raises(ConfigError) as refused:
        version_of("table.py:LOOP", folder=tmp_path, seconds=0.7 if code.startswith("while") else 30)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_loaded_code_sees_no_secret_and_changes_nothing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = "[name for name in os.environ if 'KEY' in name or 'PYTHON' in name]"
    spy = f"import os, sys\nprint('noise')\nassert not {seen}, 'seen'\n"
    (tmp_path / "table.py").write_text(spy + TABLE_FILE + "open('written', 'w').close()\n")
    monkeypatch.setenv("A_TEST_KEY", "secret")
    assert version_of("table.py", folder=tmp_path).table.name == "loop"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["table.py"]


@pytest.mark.parametrize(
    "spec", ["nonsense", "--output=x", "HEAD~1000", "nowhere.py", "HEAD:nowhere.py", "README.md", ""]
)
def test_what_is_no_version_is_one_line(spec: str, repository: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        version_of(spec, folder=repository)
    assert "\n" not in str(refused.value)
    assert spec in str(refused.value)
    assert not (repository / "x").exists()


def test_a_revision_without_the_table_is_not_answered_by_what_is_installed(repository: Path) -> None:
    says = r"there is no module fsm_agent_states.table here.*--table module:table"
    with pytest.raises(ConfigError, match=says):
        version_of("HEAD", folder=repository)


@pytest.mark.slow
def test_links_and_paths_out_of_the_archive_are_not_written(repository: Path) -> None:
    (repository / "loops" / "link.py").symlink_to(repository / "loops" / "names.py")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=link")
    assert exit_of(version_of("HEAD", "loops.table:LOOP", folder=repository)) == "left"
    with pytest.raises(ConfigError, match="cannot be loaded"):
        version_of("HEAD:loops/link.py", folder=repository)
