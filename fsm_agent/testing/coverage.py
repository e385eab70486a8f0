"""Which rows of a table were taken, and how often: over one test, or over a whole test run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fsm_agent.fsm.table import Table
from fsm_agent.runtime.events import RowTaken
from fsm_agent.runtime.stream import EVERYWHERE


class RowCoverage:
    """Counts the rows of ``table`` that any machine of this process takes between ``start`` and ``stop``, or
    in a ``with`` block.

    ``counts`` by row id. A table that is equal in all that moves a turn (``Table.digest``) counts as the same
    table."""

    def __init__(self, table: Table, counts: Mapping[str, int] | None = None) -> None:
        self.table = table
        self.counts: Counter[str] = Counter(dict(counts or {}))
        self._ids = frozenset(row.id for row in table.rows)
        self._leave: Callable[[], None] = lambda: None
        self._same: dict[int, tuple[Table, bool]] = {}

    def start(self) -> None:
        """Count rows from now on."""
        self._leave = EVERYWHERE.subscribe(self._taken, RowTaken)

    def stop(self) -> None:
        """Count no more."""
        self._leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(self, counts: Mapping[str, int]) -> None:
        """Counts of another process. Rows that the table does not have are left out."""
        self.counts.update({row: count for row, count in counts.items() if row in self._ids})

    @property
    def missed(self) -> list[str]:
        """The rows that were never taken, in the order of the table."""
        return [row.id for row in self.table.rows if not self.counts[row.id]]

    @property
    def share(self) -> float:
        """How much of the table was taken, from 0 to 1."""
        return 1 - len(self.missed) / len(self.table.rows) if self.table.rows else 1.0

    def to_dict(self) -> dict[str, Any]:
        """``{"table": name, "rows": {row id: count}}``, every row of the table in it."""
        return {"table": self.table.name, "rows": {row.id: self.counts[row.id] for row in self.table.rows}}

    def write(self, file: Path) -> None:
        """The dictionary as JSON. Raises ``OSError``."""
        file.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def summary(self) -> str:
        """One line: how many rows, and the first that are missing."""
        missed, total = self.missed, len(self.table.rows)
        named = f"; never taken: {_some(missed)}" if missed else ""
        return f"{self.table.name}: {total - len(missed)} of {total} rows taken ({self.share:.0%}){named}"

    def _taken(self, event: RowTaken) -> None:
        table, row = event
        known = self._same.get(id(table))
        if known is None or known[0] is not table:
            known = self._same[id(table)] = (table, table is self.table or table.digest == self.table.digest)
        if known[1]:
            self.counts[row.id] += 1


def _some(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
