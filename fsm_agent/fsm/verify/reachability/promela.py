"""A table as a Promela model, so that spin can confirm the search and the end of every turn independently.

One process, one loop, one option for each row; an option is one indivisible step, so spin stores exactly one
state for each (state, counters) pair, and ``STATES_OF_THE_END`` more: all turns end with the same counters. A
pair in which no row is open is an invalid end state, a turn that goes on for ever a non-progress cycle.

    spin -a turn.pml && gcc -O2 -o pan pan.c && ./pan -m10000000            # states, stuck pairs
    spin -a turn.pml && gcc -O2 -DNP -o pan pan.c && ./pan -l -m10000000    # cycles
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsm_agent.fsm.table import AnyOf, Below, Guard, Row, Table
from fsm_agent.fsm.verify.reachability.successors import guard_source, largest_limits

STATES_OF_THE_END = 2
"""The process behind its loop, and the process gone."""
PROMELA = ("!", "&&", "||", "true", "false")
BYTE, SHORT = 255, 32_767
"""The largest numbers of Promela's unsigned byte and signed short."""


def promela(table: Table, limits: Mapping[str, int], *, caps: bool = True) -> str:
    """The model of ``table`` under ``limits`` (flags need none), as Promela text. With ``caps=False`` the
    caps are taken away, as in exact search. Raises ``KeyError`` for a limit that is not given."""
    return _PromelaModel(table, limits, caps).text()


class _PromelaModel:
    def __init__(self, table: Table, limits: Mapping[str, int], caps: bool) -> None:
        self.table = table
        self.limits = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
        self.counters = [counter.name for counter in table.counters if caps or not counter.cap]
        largest = largest_limits(table, limits)
        self.largest = {counter: largest[counter] for counter in self.counters}

    def text(self) -> str:
        return "\n".join(
            [*self._head(), "active proctype turn() {", "  do", *self._options(), "  od", "}", ""]
        )

    def _head(self) -> Iterator[str]:
        yield f"/* table {self.table.name} ({self.table.digest}), written by fsm-agent verify --promela"
        yield f"   limits: {', '.join(f'{name} {value}' for name, value in self.limits.items())} */"
        yield ""
        for number, state in enumerate(self.table.states):
            yield f"#define {_state(state)} {number}"
        yield ""
        yield f"byte state = {_state(self.table.initial)};"
        for counter in self.counters:
            largest = self.largest[counter]
            kind = "byte" if largest <= BYTE else "short" if largest <= SHORT else "int"
            yield f"{kind} {_count(counter)} = 0;"
        yield ""

    def _options(self) -> Iterator[str]:
        for row in self.table.rows:
            kind, after = ("atomic", "; break") if row.dest == self.table.final else ("d_step", "")
            test = f"state == {_state(row.source)} && {self._test(row.guard)}"
            yield f"  :: {kind} {{ {test} -> {'; '.join(self._does(row))}{after} }}"

    def _does(self, row: Row) -> Iterator[str]:
        """What the row does; at the end all counters are 0, so that there is one end for all turns."""
        ends = row.dest == self.table.final
        for counter in self.counters:
            name, largest = _count(counter), self.largest[counter]
            if ends:
                yield f"{name} = 0"
            elif counter in row.spends:
                before = "0" if counter in row.resets else name
                yield f"{name} = ({before} < {largest} -> {before} + 1 : {largest})"
            elif counter in row.resets:
                yield f"{name} = 0"
        yield f"state = {_state(row.dest)}"

    def _test(self, guard: Guard) -> str:
        def atom(at: Below) -> str:
            return f"{_count(at.counter)} < {self.limits[at.limit]}" if at.counter in self.largest else "true"

        text = guard_source(guard, atom, PROMELA)
        return f"({text})" if isinstance(guard, AnyOf) else text


def _state(name: str) -> str:
    return f"AT_{name}"


def _count(counter: str) -> str:
    return f"n_{counter}"
