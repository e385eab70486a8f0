"""The difference of two versions as Markdown for a pull request, as JSON, and in one picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from fsm_agent.diagram.graph_languages import as_mermaid
from fsm_agent.diagram.layout import map_of
from fsm_agent.diagram.markdown import grid
from fsm_agent.diagram.model import ELSE, Arrow, Box, Diagram, Kind, Mark, ShownStep, StateEntry, words
from fsm_agent.diagram.table_json import row_form
from fsm_agent.diagram.versions import Version
from fsm_agent.diagram.versions.compare import (
    CERTIFIED,
    KNOWN,
    BoundChange,
    Change,
    Difference,
    LineChange,
    ProofChange,
    RowChange,
    merge_order,
)
from fsm_agent.fsm.table import Row, Table

SIGN = {"added": "+", "removed": "−", "changed": "~", "kept": " "}
BEFORE, AFTER = "- ", "+ "  # in a diff block, whose signs must be ASCII


def as_diff_markdown(old: Version, new: Version, difference: Difference, proofs: ProofChange) -> str:
    """Return the changes, their effect on the proofs, and each row, short enough for a comment."""
    lines = [f"# The {new.table.name} table: {old.name} → {new.name}", "", summary(difference, proofs), ""]
    if not difference.changed and not proofs.changed:
        return "\n".join([*lines[:-1], *(f"\n{note}" for note in (*old.notes, *new.notes))]) + "\n"
    lines += [
        *_consequences(difference, proofs),
        *_verdict(proofs),
        *_bounds(proofs.bounds),
        *_lists(difference),
        *_rows(difference.rows),
        *_names(difference),
    ]
    lines += [line for note in (*old.notes, *new.notes) for line in (f"> {note}", "")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _consequences(difference: Difference, proofs: ProofChange) -> Iterator[str]:
    """Yield a paragraph on what has become possible or impossible, and the verdict on the certificates."""
    before, after = _possible(difference.old), _possible(difference.new)
    now = [text for key, text in after.items() if key not in before]
    gone = [text for key, text in before.items() if key not in after]
    out = [f"**New:** {_join(now)}."] if now else []
    out += [f"**No longer:** {_join(gone)}."] if gone else []
    lowest = {bound.quantity: bound for bound in sorted(proofs.bounds, key=lambda bound: bound.caps)}
    for bound in lowest.values():
        if None not in (bound.old_value, bound.new_value) and bound.old_value != bound.new_value:
            out.append(f"At most {bound.new_value:,} {bound.quantity} instead of {bound.old_value:,}.")
    for name, was, now_ in proofs.checks:
        if name == CERTIFIED:
            out.append(f"The certificate of the new version is {_accepted(now_)}; before: {_accepted(was)}.")
    if out:
        yield from (" ".join(out), "")


def _accepted(findings: tuple[str, ...] | None) -> str:
    if findings is None:
        return "missing, because it is not proved"
    return "accepted by `check_certificate.py`" if not findings else f"**refused** ({findings[0]})"


def _possible(table: Table) -> dict[tuple[str, ...], str]:
    """Return the possibilities in turns of a table, in words: exits, moves between states, events, resets."""
    found: dict[tuple[str, ...], str] = {}
    for row in table.rows:
        found["event", row.source, row.event] = f"{row.source} reports *{words(row.event)}*"
        if row.exit:
            found["exit", row.exit] = f"a turn may end with *{words(row.exit)}*"
        else:
            found["move", row.source, row.dest] = f"{row.source} may lead to {row.dest}"
        for counter in row.resets:
            gives = f"*{words(row.event)}* in {row.source} gives back {words(counter)}"
            found["reset", row.source, row.event, counter] = gives
    return found


CONSEQUENCES = 8
"""Maximum number of possibilities that are listed; the rest is counted."""


def _join(texts: Sequence[str]) -> str:
    more = [f"{len(texts) - CONSEQUENCES} more, see the rows"] if len(texts) > CONSEQUENCES else []
    return "; ".join([*texts[:CONSEQUENCES], *more])


def summary(difference: Difference, proofs: ProofChange) -> str:
    """Summarize in one sentence what changed, and whether the new version is proved."""
    counts = [(difference.count(change), change) for change in ("added", "removed", "changed")]
    parts = [f"{count} row{'s' * (count != 1)} {change}" for count, change in counts if count]
    parts += (
        [f"{len(difference.names)} name{'s' * (len(difference.names) != 1)} changed"]
        if difference.names
        else []
    )
    if not parts:
        parts = ["no row changed"] if not proofs.changed else ["no row changed, but the proofs did"]
    proved = {
        (True, True): "every turn still ends",
        (False, True): "**every turn ends now**",
        (True, False): "**the new version is not proved any more**",
        (False, False): "**neither version is proved**",
    }
    sentence = f"{', '.join(parts)}; {proved[proofs.old_ok, proofs.new_ok]}."
    return sentence[0].upper() + sentence[1:]


def change_words(change: RowChange) -> str:
    """Describe how a row differs from its old version: ``resets + rekeys; guard was retries left``."""
    parts = []
    for name, before, after in change.fields:
        if name in ("spends", "resets"):
            parts.append(f"{name} {_names_changed(before, after)}")
        elif name == "exit":
            parts.append(f"was ⇥ {words(before)}" if before else "was not an exit")
        elif name != "guard" or not change.follows:
            parts.append(f"{name} was {before or 'none'}")
    return "; ".join(parts)


def as_diff_json(old: Version, new: Version, difference: Difference, proofs: ProofChange) -> str:
    """Return JSON: ``changed, old, new, rows, names, proofs, bounds``; rows are complete, changed fields are
    [before, after]."""
    value = {
        "changed": difference.changed or proofs.changed,
        "old": _version(old, proofs.old_ok),
        "new": _version(new, proofs.new_ok),
        "rows": {
            "added": [row_form(row.new) for row in difference.rows if row.change == "added"],
            "removed": [row_form(row.old) for row in difference.rows if row.change == "removed"],
            "changed": [
                {
                    "old": row.old.id,
                    "new": row.new.id,
                    "own": row.own,
                    "fields": {name: [before, after] for name, before, after in row.fields},
                }
                for row in difference.rows
                if row.old is not None and row.new is not None
            ],
        },
        "names": [asdict(name) for name in difference.names],
        "proofs": {
            "checks": [{"check": name, "old": before, "new": after} for name, before, after in proofs.checks],
            "ranking": {"old": proofs.old_ranking, "new": proofs.new_ranking},
        },
        "bounds": [{**asdict(bound), "changed": bound.changed} for bound in proofs.bounds],
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _version(version: Version, ok: bool) -> dict[str, object]:
    return {
        "name": version.name,
        "table": version.table.name,
        "digest": version.table.digest,
        "ok": ok,
        "limits": None if version.limits is None else dict(version.limits),
        "notes": version.notes,
    }


def _verdict(proofs: ProofChange) -> Iterator[str]:
    found = [
        (name, finding)
        for name, before, after in proofs.checks
        for finding in after or ()
        if before != after or not finding.startswith(KNOWN)
    ]
    gone = (name for name, before, after in proofs.checks if before == () and after is None)
    found += [(name, "was proved, and is claimed no more") for name in gone if proofs.new_ok]
    if found:
        yield from ("## Not proved", "", *(f"- **{name}**: {finding}" for name, finding in found), "")
    if proofs.old_ranking != proofs.new_ranking and proofs.new_ranking and proofs.old_ranking:
        yield from ("## Ranking, the proof that every turn ends", "", "```diff")
        yield from _block(proofs.old_ranking, proofs.new_ranking)
        yield from ("```", "")


def _bounds(bounds: Sequence[BoundChange]) -> Iterator[str]:
    """Yield figures of all changed bounds, and formulas of those without caps, which say most."""
    changed = [bound for bound in bounds if bound.changed]
    if not bounds:
        return
    yield from ("## Bounds", "")
    if not changed:
        yield from ("Unchanged.", "")
        return
    cells = [
        (
            f"{b.quantity}, {'with' if b.caps else 'without'} caps",
            _figure(b.old_value),
            _figure(b.new_value),
            f"`{b.by}`" if b.by else "",
        )
        for b in changed
    ]
    yield from grid(("At most", "Before", "After", "Formula changed by"), cells)
    for bound in changed:
        if not bound.caps and bound.old != bound.new:
            yield from ("", f"{bound.quantity[0].upper()}{bound.quantity[1:]}:", "", "```diff")
            yield from [f"{BEFORE}{bound.old}"] if bound.old else []
            yield from [f"{AFTER}{bound.new}"] if bound.new else []
            yield "```"
    legend = dict.fromkeys(line for bound in changed if not bound.caps for line in bound.legend)
    yield from ("", f"where {', '.join(f'`{line}`' for line in legend)}", "") if legend else ("",)


def _figure(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _lists(difference: Difference) -> Iterator[str]:
    """Yield the decision lists that changed, state by state."""
    changed = [line for line in difference.lines if line.change != "kept"]
    if not changed:
        return
    yield from ("## Decision lists", "", "```diff")
    for state in difference.states:
        here = [line for line in changed if line.state == state]
        if here:
            yield f"  {state}"
        for line in here:
            old, new = (decision_list(in_order(line, side)) for side in ("old", "new"))
            yield from [f"{BEFORE}  {line.event}: {old}"] if old and old != new else []
            yield from [f"{AFTER}  {line.event}: {new}"] if new and old != new else []
            yield from [f"      {line.event}: {new}  (spends, resets or guards: below)"] if old == new else []
    yield from ("```", "")


def in_order(line: LineChange, side: str) -> list[Row]:
    """Return the rows of one version of a line (``side`` is "old" or "new"), in the order of its ladder."""
    rows = (getattr(change, side) for change in line.rows)
    return sorted((row for row in rows if row is not None), key=lambda row: (len(row.id), row.id))


def decision_list(rows: Sequence[Row]) -> str:
    """Return the rungs of a line as one text."""
    return ELSE.join(_rung(row) for row in rows)


def _rung(row: Row) -> str:
    return f"⇥ {words(row.exit)}" if row.exit is not None else row.rung


def _rows(rows: Sequence[RowChange]) -> Iterator[str]:
    """Yield added, removed and changed rows; count those affected only by the rungs before them."""
    own = [row for row in rows if row.own]
    if own:
        yield from ("## Rows", "")
        cells = []
        for change in own:
            row = change.row
            effects = [f"spends {', '.join(row.spends)}"] if row.spends else []
            effects += [f"resets {', '.join(row.resets)}"] if row.resets else []
            what = (
                change_words(change)
                if change.change == "changed"
                else "; ".join([f"if {row.guard.label}", *effects])
            )
            cells.append((SIGN[change.change], f"`{row.id}`", _rung(row), row.dest, what))
        yield from grid(("", "Row", "Rung", "To", "What"), cells)
        yield ""
    if others := len(rows) - len(own):
        does = "row has its guard" if others == 1 else "rows have their guards"
        yield from (
            (
                f"{others} more {does} changed only because of the rungs before"
                f" {'it' if others == 1 else 'them'}."
            ),
            "",
        )


def _names_changed(before: str, after: str) -> str:
    old, new = (list(filter(None, names.split(", "))) for names in (before, after))
    diff = [f"+ {name}" for name in new if name not in old] + [f"− {name}" for name in old if name not in new]
    return ", ".join(diff) or "in another order"


def _names(difference: Difference) -> Iterator[str]:
    if difference.names:
        yield from ("## States, counters, resets", "")
        cells = [
            (SIGN[name.change], name.kind, f"`{name.name}`", name.before, name.after)
            for name in difference.names
        ]
        yield from grid(("", "Kind", "Name", "Before", "After"), cells)
        yield ""


def _block(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    yield from (f"{BEFORE}{line}" for line in old if line not in new)
    yield from (f"{AFTER}{line}" for line in new if line not in old)


# ----------------------------------------------------------------------------------------------------
# The difference of two versions as a pull request comment: the changes, both maps, and the proofs before and
# after.


LONGEST = 60_000
"""Maximum characters: GitHub accepts 65,536, and the caller may add a marker."""
CUT = "\n\nThe rest does not fit into a comment; `fsm-agent diagram diff` prints it.\n"


def as_comment(
    old: Version, new: Version, difference: Difference, proofs: ProofChange, picture: Diagram | None = None
) -> str:
    """Return Markdown for GitHub, at most ``LONGEST`` characters: if it is longer, drop the maps first, then
    the end. ``picture``: of the difference, shown after the first paragraph."""
    body = as_diff_markdown(old, new, difference, proofs)
    if not difference.changed and not proofs.changed:
        return body
    if picture is not None:
        head, section, rest = body.partition("\n## ")
        drawn = f"```mermaid\n{as_mermaid(picture)}```\n"
        body = f"{head.rstrip()}\n\n{drawn}{section}{rest}" if len(body) + len(drawn) < LONGEST else body
    text = "\n".join([body, *_checks(proofs)]) + "\n"
    drawn = "\n".join([text, *_maps(old, new, difference)]) + "\n"
    if len(drawn) <= LONGEST:
        return drawn
    return text if len(text) <= LONGEST else _whole_blocks(text[: LONGEST - len(CUT) - 8]) + CUT


def map_after(new: Diagram, old: Diagram, difference: Difference) -> Diagram:
    """Mark the states and arrows of the map ``new`` that were added or changed since ``old``."""
    rows = {row.row.id for row in difference.rows if row.own and row.new is not None}
    before = {(arrow.source, arrow.dest) for arrow in old.arrows}
    touched = {row.row.source for row in difference.rows if row.own}
    boxes = tuple(
        replace(
            box, mark="added" if box.state not in old.states else "changed" if box.state in touched else ""
        )
        for box in new.boxes
    )
    return replace(new, boxes=boxes, arrows=tuple(_arrow(arrow, before, rows) for arrow in new.arrows))


def _arrow(arrow: Arrow, before: set[tuple[str, str]], rows: set[str]) -> Arrow:
    if (arrow.source, arrow.dest) not in before:
        return replace(arrow, labels=(f"{SIGN['added']} {', '.join(arrow.labels)}",), mark="added")
    if rows.intersection(arrow.rows):
        return replace(arrow, labels=(f"{SIGN['changed']} {', '.join(arrow.labels)}",), mark="changed")
    return arrow


def _checks(proofs: ProofChange) -> Iterator[str]:
    cells = [
        (name, _comment_verdict(before), _comment_verdict(after)) for name, before, after in proofs.checks
    ]
    yield from ("<details><summary>Proofs, before and after</summary>", "")
    yield from grid(("Check", "Before", "After"), cells)
    yield from ("", "</details>", "")


def _comment_verdict(findings: tuple[str, ...] | None) -> str:
    if findings is None:
        return "–"
    if not findings:
        return "holds"
    return "known not to hold" if all(one.startswith(KNOWN) for one in findings) else "**fails**"


def _maps(old: Version, new: Version, difference: Difference) -> Iterator[str]:
    before, after = map_of(old.table)[0], map_of(new.table)[0]
    yield from _map(f"Map before ({old.name})", before)
    yield from _map(f"Map after ({new.name})", map_after(after, before, difference))


def _map(title: str, diagram: Diagram) -> Iterator[str]:
    yield from (f"<details><summary>{title}</summary>", "", "```mermaid", as_mermaid(diagram).rstrip("\n"))
    yield from ("```", "", "</details>", "")


def _whole_blocks(text: str) -> str:
    """Cut ``text`` after its last complete line, and close an open code block."""
    text = text.rpartition("\n")[0]
    return f"{text}\n```" if text.count("```") % 2 else text


# ----------------------------------------------------------------------------------------------------
#

LEGEND = (
    ("+ green", "added"),
    ("− red", "removed"),
    ("~ amber", "changed; struck through: as it was before"),
    ("faint", "as it was"),
)
LONG_FORMULA = 260  # characters; `diagram diff` prints them all as Markdown


def unite(
    old: Diagram, new: Diagram, difference: Difference, proofs: ProofChange, names: tuple[str, str]
) -> Diagram:
    """Merge both versions into one diagram. ``names`` are their display names."""
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
    """Return the entry of a line; above it, if the decision list changed, the old one struck through."""
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
            continue  # part of the struck-through list
        steps.append(_picture_step(line, change))
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


def _picture_step(line: LineChange, change: RowChange) -> ShownStep:
    """Build the step of a rung, with a sign unless the whole line was added or removed."""
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
    """Build the final state's box; its lines are the macros, compared by their text."""
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
            ends = [f"+ {item}" for item in sorted(come - gone)] + [
                f"− {item}" for item in sorted(gone - come)
            ]
            yield (
                f"{name.kind} {name.name}:"
                f" {', '.join(ends) if name.change == 'changed' and ends else name.change}"
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
        parts = [part for part in (words(bound.by), figures) if part]
        yield (
            f"{bound.quantity}: {', '.join(parts) or 'another formula'}"
            if bound.old and bound.new
            else f"{bound.quantity}: no bound"
        )
        if bound.new and len(bound.new) <= LONG_FORMULA and bound.old != bound.new:
            yield f"{bound.quantity} ≤ {words(bound.new)}"
