"""Which rows of a table were taken, and how often: in one test or in a whole test run."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fsm_agent.fsm.table import Table
from fsm_agent.runtime.events import EVERYWHERE, RowTaken
from fsm_agent.sessions.store.journal.read import Effect, Turns


class RowCoverage:
    """Counts the rows of ``table`` that any machine of this process takes between ``start`` and ``stop``, or
    in a ``with`` block.

    ``counts`` by row id. Tables with an equal ``Table.digest``, which covers all that moves a turn, count as
    the same table."""

    def __init__(self, table: Table, counts: Mapping[str, int] | None = None) -> None:
        self.table = table
        self.counts: Counter[str] = Counter(dict(counts or {}))
        self._ids = frozenset(row.id for row in table.rows)
        self._leave: Callable[[], None] = lambda: None
        self._same: dict[int, tuple[Table, bool]] = {}

    def start(self) -> None:
        """Start counting."""
        self._leave = EVERYWHERE.subscribe(self._on_row, RowTaken)

    def stop(self) -> None:
        """Stop counting."""
        self._leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the counts of another process. Ignore rows that the table does not have."""
        self.counts.update({row: count for row, count in counts.items() if row in self._ids})

    @property
    def missed(self) -> list[str]:
        """The rows that were never taken, in table order."""
        return [row.id for row in self.table.rows if not self.counts[row.id]]

    @property
    def share(self) -> float:
        """The share of rows taken, from 0 to 1."""
        return 1 - len(self.missed) / len(self.table.rows) if self.table.rows else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"table": name, "rows": {row id: count}}`` with every row of the table."""
        return {"table": self.table.name, "rows": {row.id: self.counts[row.id] for row in self.table.rows}}

    def write(self, file: Path) -> None:
        """Write the dictionary as JSON. Raises ``OSError``."""
        file.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def summary(self) -> str:
        """Return one line: how many rows were taken, and the first ones missing."""
        missed, total = self.missed, len(self.table.rows)
        named = f"; never taken: {_some(missed)}" if missed else ""
        return f"{self.table.name}: {total - len(missed)} of {total} rows taken ({self.share:.0%}){named}"

    def _on_row(self, event: RowTaken) -> None:
        table, row = event
        known = self._same.get(id(table))
        if known is None or known[0] is not table:
            known = self._same[id(table)] = (table, table is self.table or table.digest == self.table.digest)
        if known[1]:
            self.counts[row.id] += 1


NAMED = 8
"""Maximum rows named in a summary."""


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


# ----------------------------------------------------------------------------------------------------
# What the states do at each row, kept in a reviewed file: an oracle for effects and data.
#
# Scripts that take every row of a table detect every wrong event and every wrong counter. They miss a dropped
# wait, a wrong request, or an overwritten list, because the rows stay the same. A *footprint* is the requests
# of a visit, in order, and the turn's fields that it changed, from the journal. ``Footprints`` collects those
# of played turns and compares them with a file beside the test:
#
# >>> found = Footprints(TABLE)
# >>> for script in scripts:
# ...     found.add(flow.journal, play(flow, script).id)
# >>> found.check(Path(__file__).with_name("parcel.footprints"))
#
# A changed state changes the lines of its rows. An intended change is a changed file.


NEVER = frozenset({"state", "seq", "counts", "limits", "last_transition"})
"""Fields that the row itself determines; the invariants check these."""
UNNAMED = frozenset({"is", "call_id", "session_id"})
"""Fields of a request that differ in every turn."""
WORD = re.compile(r"[A-Za-z_][A-Za-z_ :/-]{0,39}")
"""An identifier-like text, which is shown as it is; others are shown as ``…``."""


class Footprints:
    """The requests and changes of a table's visits, by the row that ended each; those of the final state by
    its name."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._hidden = NEVER | {counter.name for counter in table.counters}
        self._found: dict[str, set[str]] = {}

    def add(self, journal: Turns, turn_id: str) -> None:
        """Read the visits of one turn that has ended."""
        for step, changes in zip(journal.steps(turn_id), journal.changes(turn_id), strict=False):
            self._note(turn_id, step.row, journal.effects(turn_id, step.seq - 1), changes)
        last = journal.info(turn_id)
        self._note(turn_id, last.state, journal.effects(turn_id, last.seq), {})

    def lines(self) -> list[str]:
        """Return the footprints, one per line after its row, in table order."""
        order = {row.id: number for number, row in enumerate(self._table.rows)}
        rows = sorted(self._found, key=lambda name: (order.get(name, len(order)), name))
        return [f"{name:32} {footprint}".rstrip() for name in rows for footprint in sorted(self._found[name])]

    def check(self, file: Path) -> None:
        """Raise ``AssertionError`` with the difference if the file differs. Write a missing file, and raise
        for that too, so that someone reads it before it is trusted."""
        lines = self.lines()
        if not file.exists():
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            raise AssertionError(
                f"{file} was not there and is written now: read it, and keep it with the test"
            )
        before = file.read_text(encoding="utf-8").splitlines()
        changed = difflib.unified_diff(before, lines, "as it was read", "as it is now", lineterm="", n=0)
        if difference := "\n".join(changed):
            raise AssertionError(f"{difference}\n(if that is meant: remove {file} and run the test again)")

    def _note(self, turn_id: str, name: str, effects: list[Effect], changes: Mapping[str, Any]) -> None:
        asked = [_request_name(effect, turn_id) for effect in effects]
        changed = [
            f"{field}{_change_words(change)}"
            for field, change in changes.items()
            if field not in self._hidden
        ]
        self._found.setdefault(name, set()).add(" ".join([*asked, *(["|", *changed] if changed else [])]))


def _request_name(effect: Effect, turn_id: str) -> str:
    parts = {name: "(turn)" if value == turn_id else _format(value) for name, value in _flat(effect.request)}
    fields = ", ".join(f"{name}={shown}" for name, shown in parts.items())
    status = "" if effect.status == "done" else f"!{effect.status}"
    return f"{effect.kind}{status}({fields})"


def _flat(request: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in request.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif name not in UNNAMED:
            yield name, value


def _change_words(change: Mapping[str, Any]) -> str:
    if isinstance(change.get("to", {}), dict) and "added" not in change:
        return "~"  # the differing parts may depend on the length of a path
    return f"={_format(change['to'])}" if "to" in change else f"+{len(change['added'])}"


def _format(value: Any) -> str:
    match value:
        case None | bool():
            return str(value).lower()
        case int() | float():
            return "n" if value else "0"
        case str():
            return value if not value or WORD.fullmatch(value) else "…"
        case list():
            return f"{len(value)}×"
    return "~"
