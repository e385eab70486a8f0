"""The proofs that run before a table is used: partition, structure, and the end of every turn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fsm_agent.errors import TableError
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.proof import Fault
from fsm_agent.fsm.verify.proof.graph import unfold
from fsm_agent.fsm.verify.proof.ranking import Ranking, ending_faults, rank
from fsm_agent.fsm.verify.proof.structure import counter_faults, partition_faults, structure_faults
from fsm_agent.fsm.verify.proof.truth_tables import line_truths


@dataclass(frozen=True, slots=True)
class Proof:
    """What the checks of one table found; it is a proof when ``faults`` is empty. ``regions`` is the number
    of combinations of budgets that the partition was checked for."""

    regions: int
    partition: tuple[Fault, ...]
    structure: tuple[Fault, ...]
    counters: tuple[Fault, ...]
    with_caps: Ranking
    without_caps: Ranking

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return all that is wrong with the table; empty when it is proved."""
        endless = ending_faults(self.with_caps) or ending_faults(self.without_caps)
        return (*self.partition, *self.structure, *self.counters, *endless)


@lru_cache(maxsize=8)
def examine(table: Table) -> Proof:
    """Run the checks on a table and give all that they found, remembered for the last few tables. Raises
    ``TableError`` only for a line that tests too many budgets."""
    truths = line_truths(table)
    graph, free = unfold(table, truths, caps=True), unfold(table, truths, caps=False)
    return Proof(
        regions=sum(1 << len(truth.atoms) for truth in truths),
        partition=partition_faults(truths),
        structure=structure_faults(truths, graph),
        counters=counter_faults(graph),
        with_caps=rank(graph),
        without_caps=rank(free),
    )


_PROVED: set[str] = set()


def prove(table: Table) -> None:
    """Raise ``TableError`` unless exactly one row is open for every declared event and every turn ends, both
    for every configuration, with the caps and without; and of each table that its states run. The message
    names the rows and the fix. A verdict is remembered."""
    for inner in table.within.values():
        prove(inner)
    digest = table.digest
    if digest in _PROVED:
        return
    faults = examine(table).faults
    if faults:
        raise TableError("\n".join(f"{table.name}: {fault}" for fault in faults))
    _PROVED.add(digest)
