"""The diagram model: the intermediate form between a transition table and its renderers.

Exits stay inside their state, rows with the same source and destination are merged into one arrow, and an
arrow carries the names of the rungs that take it (or of the event, when the move is unconditional).
Everything is in table order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fsm_agent.fsm.table import ALWAYS, Line, Row, Rung, Table

Kind = Literal["rung", "move", "exit", "same", "note"]
Mark = Literal[
    "", "taken", "partly", "never", "unused", "likely", "possible", "seldom",
    "added", "removed", "changed", "kept",
]  # fmt: skip
"""How runs used a part or are expected to, or how it differs from another version."""
MARKS: Mapping[Kind, str] = {"rung": "", "move": "→ ", "exit": "⇥ ", "same": "as ", "note": ""}
ELSE = " › "
LONG_LADDER = 5  # minimum rungs for shortening a ladder that repeats another line's


@dataclass(frozen=True, slots=True)
class ShownStep:
    """One rung in a decision list. ``note`` only explains the step before it. ``tail`` follows it: a
    count."""

    kind: Kind
    words: str
    rows: tuple[str, ...] = ()
    mark: Mark = ""
    tail: str = ""

    @property
    def text(self) -> str:
        """Return the words with the symbol of their kind."""
        return MARKS[self.kind] + self.words


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One line of a state: its event and decision list, complete (``steps``) and as drawn (``short``).
    ``label`` is empty if the line above has the same event."""

    event: str
    label: str
    steps: tuple[ShownStep, ...]
    short: tuple[ShownStep, ...]
    rows: tuple[str, ...]
    why: str
    mark: Mark = ""

    @property
    def text(self) -> str:
        """Return the steps of the entry in one line."""
        return "".join(
            f"{separator}{step.text} {step.tail}".rstrip() for separator, step in with_previous(self.short)
        )


@dataclass(frozen=True, slots=True)
class Box:
    """A state and its part of the table. ``intro`` is a sentence above the lines, ``badge`` follows the
    name."""

    state: str
    entries: tuple[StateEntry, ...]
    intro: str = ""
    final: bool = False
    badge: str = ""
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """All rows from one state to another. ``way_out``: it leads to the final state. ``by_label``: the rows of
    each label, ``marks``: the mark of each label; ``count``: how often the arrow was taken, which makes it
    thicker; ``usual``: a turn without surprises takes it, so it is bold."""

    source: str
    dest: str
    labels: tuple[str, ...]
    rows: tuple[str, ...]
    way_out: bool = False
    by_label: tuple[tuple[str, ...], ...] = ()
    mark: Mark = ""
    marks: tuple[Mark, ...] = ()
    count: int = 0
    usual: bool = False


@dataclass(frozen=True, slots=True)
class Diagram:
    """Boxes and arrows of a table. ``boxes`` has one for each state, the final one last; a partial diagram
    has fewer.

    ``caption`` is a heading and lines of (term, words) on the meaning of the marks; ``legend`` explains the
    marks. ``judged``: colors mean good and bad, so arrows do not have the colors of their states. ``nested``:
    the tables that its states run, drawn below or beside it."""

    table: Table
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    caption: tuple[str, tuple[tuple[str, str], ...]] | None = None
    legend: tuple[tuple[str, str], ...] = ()
    judged: bool = False
    nested: tuple[Diagram, ...] = ()

    @property
    def runs(self) -> tuple[tuple[str, Diagram], ...]:
        """Return each state that runs a nested table, with its diagram."""
        inner = self.table.inner
        return tuple((s, one) for one in self.nested for s in inner if one.table in inner[s].tables)

    @property
    def states(self) -> tuple[str, ...]:
        """Return the names of the states, in the order of the boxes."""
        return tuple(box.state for box in self.boxes)

    def box(self, state: str) -> Box:
        """Return the box of a state; raises ``StopIteration`` if it has none."""
        return next(box for box in self.boxes if box.state == state)


def diagram_of(table: Table, ways_out: Mapping[str, Sequence[str]] | None = None) -> Diagram:
    """Build the model of ``table``. ``ways_out`` names the exits drawn as arrows, ``{state: events}``; all
    other exits stay in their boxes. By default, the exits without a rung before them are drawn."""
    boxes = tuple(
        Box(
            state,
            tuple(_entry(table, line) for line in table.lines if line.source == state),
            f"runs {words(table.inner[state].label)}" if state in table.inner else "",
        )
        for state in table.states
        if state != table.final
    )
    inner = {one.name: one for runs in table.inner.values() for one in runs.tables}
    nested = tuple(
        diagram_of(one, one.layout.get("ways_out") if one.layout else None) for one in inner.values()
    )
    return Diagram(table, (*boxes, _final_box(table)), _arrows(table, ways_out), nested=nested)


def words(name: str) -> str:
    """Make an identifier readable: ``cut_text`` becomes "cut text"."""
    return name.replace("_", " ")


def with_previous(steps: Sequence[ShownStep]) -> Iterator[tuple[str, ShownStep]]:
    """Yield each step with the separator before it."""
    for number, step in enumerate(steps):
        yield ("" if number == 0 else " " if step.kind == "note" else ELSE), step


def is_move(rung: Rung) -> bool:
    """Return whether the rung has no name of its own because it was made by ``go``."""
    return rung.exit is None and rung.needs == ALWAYS and rung.name == f"→ {rung.to}"


def line_rows(table: Table, line: Line) -> tuple[tuple[Rung, Row], ...]:
    """Return each rung of a line with the row it became."""
    return tuple(zip(line.ladder, table.by_event[line.source, line.event], strict=True))


def resets_in_words(table: Table, resets: Sequence[str]) -> str:
    """Join reset counters, with reset groups by name and the others by their own names."""
    rest, names = set(resets), []
    for name, group in sorted(table.reset_groups.items(), key=lambda item: -len(item[1])):
        if group and rest.issuperset(group):
            names.append(name)
            rest.difference_update(group)
    return ", ".join([*names, *(counter for counter in resets if counter in rest)])


def _step(rung: Rung, row: Row) -> ShownStep:
    if rung.exit is not None:
        return ShownStep("exit", words(rung.exit), (row.id,))
    return ShownStep("move", rung.to, (row.id,)) if is_move(rung) else ShownStep("rung", rung.name, (row.id,))


def _entry(table: Table, line: Line) -> StateEntry:
    steps = tuple(_step(rung, row) for rung, row in line_rows(table, line))
    rows = tuple(row.id for row in table.by_event[line.source, line.event])
    return StateEntry(line.event, words(line.event), steps, _shorten(table, line, steps), rows, line.why)


def _shorten(table: Table, line: Line, steps: tuple[ShownStep, ...]) -> tuple[ShownStep, ...]:
    """Shorten a long list that equals another one of the state plus one rung: ``compact › as built``.

    Exact: the earlier rungs were refused already, so trying them again changes nothing."""
    if len(steps) < LONG_LADDER:
        return steps
    shorter: list[tuple[ShownStep, ...]] = []
    for other in table.lines:
        if other.source != line.source or len(other.ladder) != len(line.ladder) - 1:
            continue
        before = next((i for i, rung in enumerate(other.ladder) if rung != line.ladder[i]), len(other.ladder))
        tail = steps[before + 1 :]
        if line.ladder[before + 1 :] == other.ladder[before:] and len(tail) > 2:
            same = ShownStep("same", words(other.event), tuple(row for step in tail for row in step.rows))
            shorter.append((*steps[: before + 1], same))
    return min(shorter, key=len, default=steps)


def _final_box(table: Table) -> Box:
    entries: list[StateEntry] = []
    everywhere = True
    for event, exits in table.macros:
        by_exit: dict[str, list[str]] = {}
        for state in table.states:
            if state in exits:
                by_exit.setdefault(exits[state], []).append(state)
        everywhere = everywhere and len(exits) == len(table.states) - 1
        for number, (reason, states) in enumerate(by_exit.items()):
            rows = tuple(f"{state}.{event}" for state in states)
            steps = [ShownStep("exit", words(reason), rows)]
            if number or not everywhere:
                steps.append(ShownStep("note", f"({', '.join(states)})"))
            why = f"every state: {event}"
            entries.append(
                StateEntry(event, "" if number else words(event), tuple(steps), tuple(steps), rows, why)
            )
    also = "; from every state also:" if everywhere else "; also:"
    return Box(table.final, tuple(entries), f"every ⇥ ends here{also if entries else ''}", final=True)


def _arrows(table: Table, ways_out: Mapping[str, Sequence[str]] | None) -> tuple[Arrow, ...]:
    everywhere = {(state, event) for event, exits in table.macros for state in exits}
    inner = [row for row in table.rows if (row.source, row.event) not in everywhere]
    return merge_arrows(table, [row for row in inner if row.exit is None or _is_drawn(table, row, ways_out)])


def merge_arrows(table: Table, rows: Iterable[Row]) -> tuple[Arrow, ...]:
    """Merge ``rows`` into one arrow per source and destination; labels in table order."""
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        pairs.setdefault((row.source, row.dest), []).append(row)
    return tuple(_arrow(table, together) for together in pairs.values())


def _arrow(table: Table, rows: Sequence[Row]) -> Arrow:
    labels: dict[str, list[str]] = {}
    for row in rows:
        named = row.exit is None and row.rung != f"→ {row.dest}"
        labels.setdefault(row.rung if named else words(row.event), []).append(row.id)
    source, dest = rows[0].source, rows[0].dest
    by_label = tuple(map(tuple, labels.values()))
    return Arrow(source, dest, tuple(labels), tuple(row.id for row in rows), dest == table.final, by_label)


def _is_drawn(table: Table, row: Row, ways_out: Mapping[str, Sequence[str]] | None) -> bool:
    if ways_out is None:
        return len(table.by_event[row.source, row.event]) == 1
    return row.event in ways_out.get(row.source, ())
