"""Changes of rows in the text of a module: what is written means what was asked, and everything else stays."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fsm_agent.debug.live.patch import AddRung, Edit, MoveRung, Patched, SetLimit, TableText
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table, lines_of

EXAMPLES = ("examples.review_loop", "examples.order", "examples.nested", "examples.parallel")
OWN = "fsm_agent_states.table"
SHORT = '''from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on

AGAIN = Rung("again", "A", left("tries"), ("tries",))
LIMITS = {"tries": 3}  # as the provider says
TABLE = Table("short", ("A", "B"), "B", (Counter("tries"),), lines_of({
    "A": [
        # what comes first
        on(
            "failed",
            AGAIN,  # a second try is cheap
            end("lost", "B"),  # and then it is over
            why="no answer – «ß»",
        ),
        on("done", end("done", "B"), why="an answer"),
    ],
}))
'''  # fmt: skip


def module_of(name: str) -> tuple[ModuleType, Table, TableText]:
    """Return a module with its table and its text."""
    module = importlib.import_module(name)
    table: Table = getattr(module, "TURN", None) or module.TABLE
    return module, table, TableText(Path(str(module.__file__)).read_bytes(), table)


def short(text: str = SHORT) -> tuple[Table, TableText]:
    known: dict[str, Table] = {}
    exec(text, known)  # the text above
    return known["TABLE"], TableText(text.encode(), known["TABLE"])


def changed(text: TableText, edit: Edit) -> Table:
    """Apply an edit, run the text it makes, and return its table."""
    patched = text.apply(edit)
    known: dict[str, Table] = {}
    exec(patched.text, known)  # the text above, changed
    assert known["TABLE"] == patched.table
    return known["TABLE"]


def evaluated(module: ModuleType, table: Table, patched: Patched, state: str, event: str) -> None:
    """The changed list, run where it is written, is the one that was asked for; comments are all there."""
    before = Path(str(module.__file__)).read_bytes()
    assert sorted(re.findall(rb"#[^\n]*", before)) == sorted(re.findall(rb"#[^\n]*", patched.text))
    place = TableText(patched.text, patched.table).line(state, event)
    calls = [
        node
        for node in ast.walk(ast.parse(patched.text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "on"
        and node.lineno == place
    ]  # fmt: skip
    made = [eval(ast.unparse(call), vars(module)) for call in calls]  # the project's own source
    wanted = next(line for line in patched.table.lines if (line.source, line.event) == (state, event))
    assert wanted in [lines_of({state: [one]})[0] for one in made]
    same = {(line.source, line.event) for line in table.lines if line in patched.table.lines}
    others = TableText(before, table).together(state, event)
    assert {(line.source, line.event) for line in table.lines} - same <= {
        (one, event) for one in (state, *others)
    }


def every_edit(table: Table, text: TableText) -> list[Edit]:
    """Each rung moved, and in each list a rung added at each place, in turn with a guard and without."""
    found: list[Edit] = []
    remedies, guards = list(text.remedies), list(text.guards)
    for number, line in enumerate(table.lines):
        if text.refusal(line.source, line.event):
            continue
        found += [MoveRung(line.source, line.event, n, 1) for n in range(1, len(line.ladder))]
        for at in range(1, len(line.ladder) + 2):
            remedy = remedies[(number + at) % len(remedies)]
            fits = [g for g in guards if ~text.guards[g] not in text.remedies[remedy].needs.atoms()]
            fits = [g for g in fits if all(~text.guards[g] != a for a in text.remedies[remedy].needs.atoms())]
            guard = fits[number % len(fits)] if at % 2 and fits else ""
            found.append(AddRung(line.source, line.event, at, remedy, guard))
    return found


def applied(text: TableText, edit: Edit) -> Patched | None:
    """Return what an edit makes, or ``None`` for a rung that fits nowhere, or renames a row of a property."""
    try:
        return text.apply(edit)
    except ConfigError as error:
        if isinstance(edit, AddRung) and re.search(
            "could never be taken|does not know|Who paid gets it", str(error)
        ):
            return None
        raise


def check_every_edit(name: str, most: int | None = None) -> None:
    module, table, text = module_of(name)
    edits = every_edit(table, text)
    assert len(edits) > 1
    made = 0
    for edit in edits[:: max(1, len(edits) // most)] if most else edits:
        assert not isinstance(edit, SetLimit)
        patched = applied(text, edit)
        if patched is None:
            continue
        made += 1
        evaluated(module, table, patched, edit.state, edit.event)
    assert made


def test_some_edits_of_the_turn_mean_what_was_asked() -> None:
    check_every_edit(OWN, most=3)


def test_edits_of_an_example_mean_what_was_asked() -> None:
    check_every_edit("examples.review_loop", most=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [OWN, *EXAMPLES])
def test_every_edit_of_every_row_means_what_was_asked(name: str) -> None:
    check_every_edit(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_limits_are_changed_wherever_they_are_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, text = module_of(name)
    assert text.limits
    for limit, value in text.limits.items():
        patched = text.apply(SetLimit(limit, value + 7))
        assert TableText(patched.text, patched.table).limits == {**text.limits, limit: value + 7}
        made = ModuleType("changed_example")
        monkeypatch.setitem(sys.modules, made.__name__, made)
        exec(patched.text, vars(made))
        assert made.LIMITS[limit] == value + 7


def test_a_comment_moves_with_the_rung_that_has_a_line_of_its_own() -> None:
    _, text = short()
    moved = text.apply(MoveRung("A", "failed", 1, 1)).text.decode()
    assert (
        '            end("lost", "B"),  # and then it is over\n            AGAIN,  # a second try is cheap\n'
        in moved
    )
    assert [line for line in moved.splitlines() if line not in SHORT.splitlines()] == []


def test_a_new_rung_has_a_line_of_its_own_where_the_others_do() -> None:
    _, text = short()
    made = text.apply(AddRung("A", "failed", 2, 'end("done", "B")', '~left("tries")')).text.decode()
    assert (
        '\n            end("done", "B", when=~left("tries")),\n            end("lost", "B"),  # and' in made
    )
    table = changed(text, AddRung("A", "failed", 3, "AGAIN"))
    assert [row.rung for row in table.by_event["A", "failed"]] == ["again", "⇥ lost", "again"]


@pytest.mark.parametrize(
    "make",
    [lambda t: t.replace("\n", "\r\n"), lambda t: "\ufeff" + t, lambda t: t.replace("\n\n", "\n\x0c\n")],
)
def test_line_ends_and_odd_characters_stay(make: object) -> None:
    assert callable(make)
    text = make(SHORT)
    table, _ = short()
    patched = TableText(text.encode(), table).apply(SetLimit("tries", 12))
    assert patched.text.decode() == text.replace('"tries": 3', '"tries": 12')
    moved = TableText(text.encode(), table).apply(MoveRung("A", "failed", 1, 1)).text.decode()
    assert sorted(moved.splitlines()) == sorted(text.splitlines())


WRONG = [
    (MoveRung("A", "failed", 2, 1), "a rung moves up or down within its list"),
    (MoveRung("A", "failed", 1, -1), "a rung moves up or down within its list"),
    (MoveRung("A", "nothing", 1, 1), "not written literally"),
    (AddRung("A", "failed", 9, "AGAIN"), "there is no such place"),
    (AddRung("A", "failed", 1, "__import__('os')"), "no such remedy"),
    (AddRung("A", "failed", 1, "AGAIN", "True"), "no such guard"),
    (AddRung("A", "failed", 1, "AGAIN", '~left("tries")'), "could never be taken"),
    (SetLimit("others", 3), "the module gives it none"),
    (SetLimit("tries", -1), "a limit is a whole number"),
    (SetLimit("tries", 10**9), "a limit is a whole number"),
]


@pytest.mark.parametrize(("edit", "says"), WRONG)
def test_what_cannot_be_changed_is_refused_in_a_line(edit: Edit, says: str) -> None:
    _, text = short()
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        text.apply(edit)
    assert "\n" not in str(refused.value)


def test_rows_that_are_not_written_one_by_one_are_refused() -> None:
    made = SHORT.replace('            AGAIN,  # a second try is cheap\n            end("lost", "B"),  # and then it is over\n',
                         '            *(AGAIN, end("lost", "B")),\n')  # fmt: skip
    _, text = short(made)
    assert text.refusal("A", "failed") == "its rungs are not written one by one"
    _, _, nested = module_of("examples.nested")
    assert nested.refusal("Order", "bug").startswith("its row is not written literally")
    assert not nested.refusal("Order", "sold_out")


def test_a_name_that_the_module_does_not_have_is_not_written() -> None:
    _, text = short(
        SHORT.replace("left, lines_of, on", "left as has, lines_of, on").replace(
            'left("tries")', 'has("tries")'
        )
    )
    with pytest.raises(ConfigError, match="does not know left"):
        text.apply(AddRung("A", "done", 1, 'end("lost", "B")', 'left("tries")'))


def test_a_rung_that_renames_the_row_of_a_property_is_refused() -> None:
    _, _, text = module_of("examples.order")
    with pytest.raises(ConfigError, match=r"names row 'Charge\.done', which the table does not have"):
        text.apply(AddRung("Charge", "done", 1, 'TRY["Charge"]'))


def test_a_limit_with_several_numbers_is_refused() -> None:
    _, text = short(SHORT + '\nMORE = {"tries": 4}\n')
    with pytest.raises(ConfigError, match="it has several numbers"):
        text.apply(SetLimit("tries", 5))
