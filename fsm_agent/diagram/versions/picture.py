"""Two versions in one picture, box by box: what came is green with ``+``, what went red with ``−``, what
changed amber with ``~``, the rest faint. A decision list that changed appears twice, the old one struck
through. Lines, boxes and arrows of either version are there; their places
are those of the new one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fsm_agent.diagram.model import Arrow, Box, Diagram, Kind, Mark, ShownStep, StateEntry, words
from fsm_agent.diagram.versions.compare import (
    Change,
    Difference,
    LineChange,
    ProofChange,
    RowChange,
    merge_order,
)
from fsm_agent.diagram.versions.text import SIGN, change_words, decision_list, in_order, summary
from fsm_agent.fsm.table import Row

LEGEND = (
    ("+ green", "added"),
    ("− red", "removed"),
    ("~ amber", "changed; struck through: as it was before"),
    ("faint", "as it was"),
)
LONG_FORMULA = 260  # letters; `diagram diff` prints them all as Markdown


def unite(
    old: Diagram, new: Diagram, difference: Difference, proofs: ProofChange, names: tuple[str, str]
) -> Diagram:
    """One diagram of both versions. ``names`` are what a reader calls them."""
    final = new.table.final
    states = [state for state in difference.states if state != final]
    boxes = [_box(state, new, difference) for state in states]
    boxes.append(_final(old, new, difference))
    own = {change.row.id: change for change in difference.rows if change.own and change.new is not None}
    arrows = tuple(_arrows(old, new, own))
    title = f"{names[0]} → {names[1]}"
    caption = (title, tuple(("", line) for line in _caption(difference, proofs)))
    return Diagram(new.table, tuple(boxes), arrows, caption, LEGEND, judged=True)


def _box(state: str, new: Diagram, difference: Difference) -> Box:
    macros = {
        event for table in (difference.old, difference.new) for event, exits in table.macros if state in exits
    }
    lines = [line for line in difference.lines if line.state == state]
    entries = tuple(entry for line in lines if line.event not in macros for entry in _entries(line))
    mark = _mark(state in difference.old.states, state in new.table.states, [entry.mark for entry in entries])
    return Box(state, entries, badge=_badge(difference, state), mark=mark)


def _mark(before: bool, after: bool, inside: Iterable[Mark]) -> Mark:
    if before and after:
        return "changed" if any(mark != "kept" for mark in inside) else "kept"
    return "added" if after else "removed"


def _badge(difference: Difference, state: str) -> str:
    signs = [(SIGN[change], difference.count(change, state)) for change in ("added", "removed", "changed")]
    return " ".join(f"{sign}{count}" for sign, count in signs if count)


def _entries(line: LineChange) -> Iterable[StateEntry]:
    """A line; where its decision list reads otherwise now, what it was is struck through above it."""
    before = in_order(line, "old")
    if line.change != "changed" or decision_list(before) == decision_list(in_order(line, "new")):
        return (_entry(line),)
    steps = (*(_strike_out(row) for row in before), ShownStep("note", "(before)", (), "changed"))
    label = f"{SIGN[line.change]} {words(line.event)}"
    old = StateEntry(line.event, label, steps, steps, (), line.rows[0].row.why, "changed")
    return old, replace(_entry(line), label="")


def _strike_out(row: Row) -> ShownStep:
    kind: Kind = "rung" if row.exit is None else "exit"
    return ShownStep(kind, words(row.exit) if row.exit is not None else row.rung, (), "removed")


def _entry(line: LineChange) -> StateEntry:
    texts = [
        words(change_words(c)) if c.change == "changed" and line.change == "changed" else ""
        for c in line.rows
    ]
    steps: list[ShownStep] = []
    for change, text in zip(line.rows, texts, strict=True):
        if change.new is None and line.change == "changed":
            continue  # it is part of the line that is struck through
        steps.append(_step(line, change))
        if text and texts.count(text) == 1:
            steps.append(_note(text))
    steps += [_note(text) for text in dict.fromkeys(texts) if text and texts.count(text) > 1]
    event = words(line.event)
    label = event if line.change == "kept" else f"{SIGN[line.change]} {event}"
    rows = tuple(change.new.id for change in line.rows if change.new is not None)
    whole = tuple(steps)
    return StateEntry(line.event, label, whole, whole, rows, line.rows[0].row.why, line.change)


def _note(text: str) -> ShownStep:
    return ShownStep("note", f"({text})", (), "changed")


def _step(line: LineChange, change: RowChange) -> ShownStep:
    """A rung with its sign, where it is not the whole line that came or went."""
    row = change.row
    rows = (row.id,) if change.new is not None else ()
    mark: Mark = change.change if change.own else ""
    if line.change != "changed":
        mark = line.change
    elif mark == "kept":
        mark = ""
    sign = f"{SIGN[mark]} " if mark and line.change == "changed" else ""
    if row.exit is None:
        plain = not sign and row.rung == f"→ {row.dest}"
        return (
            ShownStep("move", row.dest, rows, mark)
            if plain
            else ShownStep("rung", f"{sign}{row.rung}", rows, mark)
        )
    return (
        ShownStep("rung", f"{sign}⇥ {words(row.exit)}", rows, mark)
        if sign
        else ShownStep("exit", words(row.exit), rows, mark)
    )


def _final(old: Diagram, new: Diagram, difference: Difference) -> Box:
    """The final state's box; its lines are those that all states share, compared as they read."""
    box = new.box(new.table.final)
    before = {(entry.event, entry.text) for b in old.boxes if b.final for entry in b.entries}
    after = {(entry.event, entry.text) for entry in box.entries}
    gone = [
        entry for b in old.boxes if b.final for entry in b.entries if (entry.event, entry.text) not in after
    ]
    kept = [(entry, "kept" if (entry.event, entry.text) in before else "added") for entry in box.entries]
    entries = tuple(_marked(entry, mark) for entry, mark in [*kept, *((entry, "removed") for entry in gone)])  # type: ignore[arg-type]
    final = new.table.final
    exits = [
        change for change in difference.rows if change.row.exit is not None and change.change != "changed"
    ]
    mark = _mark(final in difference.old.states, True, [entry.mark for entry in entries])
    signs = [(SIGN[kind], sum(change.change == kind for change in exits)) for kind in ("added", "removed")]
    badge = " ".join(f"{sign}{count}" for sign, count in signs if count)
    return replace(box, entries=entries, mark=mark, badge=f"exits {badge}" if badge else "")


def _marked(entry: StateEntry, mark: Change) -> StateEntry:
    rows = entry.rows if mark != "removed" else ()
    steps = tuple(replace(step, mark=mark, rows=step.rows if rows else ()) for step in entry.steps)
    label = entry.label if mark == "kept" else f"{SIGN[mark]} {words(entry.event)}"
    return replace(entry, steps=steps, short=steps, label=label, rows=rows, mark=mark)


def _arrows(old: Diagram, new: Diagram, own: Mapping[str, RowChange]) -> Iterable[Arrow]:
    before = {(arrow.source, arrow.dest): arrow for arrow in old.arrows}
    after = {(arrow.source, arrow.dest): arrow for arrow in new.arrows}
    for pair in merge_order(list(before), list(after)):
        a, b = before.get(pair), after.get(pair)
        found = [
            _label(label, a, b, own) for label in merge_order(a.labels if a else (), b.labels if b else ())
        ]
        mark = _mark(a is not None, b is not None, [mark for _, mark in found])
        whole = mark in ("added", "removed", "kept")
        labels = tuple(label if mark == "kept" else f"{SIGN[mark]} {label}" for label, mark in found)
        rows = b.rows if b else ()
        way_out = (b or a).way_out  # type: ignore[union-attr]  # one of the two is there
        yield Arrow(*pair, labels, rows, way_out, (), mark, () if whole else tuple(mark for _, mark in found))


def _label(label: str, a: Arrow | None, b: Arrow | None, own: Mapping[str, RowChange]) -> tuple[str, Mark]:
    if a is None or label not in a.labels:
        return label, "added"
    if b is None or label not in b.labels:
        return label, "removed"
    rows = dict(zip(b.labels, b.by_label, strict=True))[label]
    return label, "changed" if any(row in own and own[row].change == "changed" for row in rows) else "kept"


def _caption(difference: Difference, proofs: ProofChange) -> Iterable[str]:
    yield summary(difference, proofs).replace("*", "")
    yield from (f"{name}: {finding}" for name, _, after in proofs.checks for finding in after or ())
    for name in difference.names:
        if name.kind != "state":
            gone, come = set(name.before.split(", ")) - {""}, set(name.after.split(", ")) - {""}
            told = [f"+ {item}" for item in sorted(come - gone)] + [
                f"− {item}" for item in sorted(gone - come)
            ]
            yield (
                f"{name.kind} {name.name}:"
                f" {', '.join(told) if name.change == 'changed' and told else name.change}"
            )
    bounds = [bound for bound in proofs.bounds if not bound.caps]
    changed = [bound for bound in bounds if bound.changed]
    if proofs.old_ok and proofs.new_ok and not changed:
        yield "The bounds are as they were."
    for bound in changed:
        figures = (
            f"{bound.old_value:,} → {bound.new_value:,}"
            if bound.old_value is not None and bound.new_value is not None
            else ""
        )
        told = [part for part in (words(bound.by), figures) if part]
        yield (
            f"{bound.quantity}: {', '.join(told) or 'another formula'}"
            if bound.old and bound.new
            else f"{bound.quantity}: no bound"
        )
        if bound.new and len(bound.new) <= LONG_FORMULA and bound.old != bound.new:
            yield f"{bound.quantity} ≤ {words(bound.new)}"
