"""A table from the JSON values that ``describe`` makes of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_agent.diagram.describe import row_form
from fsm_agent.errors import ConfigError, TableError
from fsm_agent.fsm.properties import (
    AtMostProperty,
    EventuallyProperty,
    GuardedMoves,
    JoinedMoves,
    Moves,
    NamedMoves,
    NeverProperty,
    OtherMoves,
    Property,
)
from fsm_agent.fsm.table import Below, Counter, Guard, Inner, Line, Rung, Table, all_of, any_of


def table_from(value: Any, origin: str) -> Table:
    """The table that a description describes. ``origin`` names it in messages. Raises ``ConfigError``."""
    try:
        return Table(
            name=value["name"],
            states=tuple(value["states"]),
            final=value["final"],
            counters=tuple(Counter(c["name"], c["flag"], c["cap"]) for c in value["counters"]),
            lines=tuple(_line(line) for line in value["lines"]),
            macros=tuple((macro["event"], dict(macro["exits"])) for macro in value["macros"]),
            reset_groups={name: tuple(group) for name, group in value["resets"].items()},
            properties=tuple(map(_property, value.get("properties", ()))),
            inner={
                state: Inner(tuple(table_from(one, origin) for one in runs["tables"]), runs["most"])
                for state, runs in value.get("inner", {}).items()
            },
        )
    except TableError as error:
        raise ConfigError(f"the table is wrong ({error})", origin) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"this is no whole description of a table ({what})", origin, "diagram --format json"
        ) from None


def expands_alike(table: Table, value: Mapping[str, Any]) -> bool:
    """Its own engine made the same rows of its lines as this one does."""
    ours = [row_form(row) for row in table.rows]
    return bool(ours == value.get("rows"))


def _line(value: Mapping[str, Any]) -> Line:
    return Line(
        value["state"],
        value["event"],
        tuple(map(_rung, value["ladder"])),
        tuple(value["resets"]),
        value["why"],
    )


def _rung(value: Mapping[str, Any]) -> Rung:
    return Rung(
        value["rung"],
        value["to"],
        _guard(value.get("needs")),
        tuple(value.get("spends", ())),
        tuple(value.get("resets", ())),
        value.get("exit"),
    )


def _property(value: Mapping[str, Any]) -> Property:
    kinds: tuple[type[Property], ...] = (NeverProperty, EventuallyProperty, AtMostProperty)
    kind = {one.__name__: one for one in kinds}[value["kind"]]
    fields: dict[str, Any] = {
        name: _moves(part) if isinstance(part, Mapping) else part
        for name, part in value.items()
        if name != "kind"
    }
    return kind(**fields)


def _moves(value: Mapping[str, Any]) -> Moves:
    match value:
        case {"field": field, "names": [*names]}:
            return NamedMoves(field, tuple(names))
        case {"where": guard}:
            return GuardedMoves(_guard(guard))
        case {"every": [*members]}:
            return JoinedMoves(tuple(map(_moves, members)), every=True)
        case {"some": [*members]}:
            return JoinedMoves(tuple(map(_moves, members)), every=False)
        case {"not": member}:
            return OtherMoves(_moves(member))
    raise ValueError(f"no moves: {value}")


def _guard(value: Mapping[str, Any] | None) -> Guard:
    match value:
        case None:
            return all_of(())
        case {"left": str(counter), "limit": str(limit), "yes": str(yes), "no": str(no)}:
            return Below(counter, limit, yes, no)
        case {"not": part}:
            return ~_guard(part)
        case {"all": [*parts]}:
            return all_of(map(_guard, parts))
        case {"any": [*parts]}:
            return any_of(map(_guard, parts))
    raise ValueError(f"no guard: {value}")
