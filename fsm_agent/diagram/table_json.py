"""A table as complete plain JSON values; ``table_from`` is the inverse.

``describe`` accesses tables only by the names of their attributes, because this file also runs as a program
in a separate process that loads the code of another version (see ``versions``)::

    python -I -B table_json.py ROOT[:ROOT] module:attribute    # or path.py:attribute; or without :attribute

It prints ``{"table": …, "limits": … or null}``, or one line on standard error and exit code 1.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fsm_agent.diagram.model import Diagram
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

HOMES = (
    ("fsm_agent_states.turn", "fsm_agent.settings", "fsm_agent.conversation.effects"),
    ("states.turn", "fsm_agent.settings", "fsm_agent.requests"),
)
"""Modules of the turn's limits, the settings, and the runtime in versions whose table does not know its
default limits."""


def describe(table: Any) -> dict[str, Any]:
    """Return ``name, states, final, counters, resets, lines, macros, rows``, and, if there are any,
    ``properties`` and ``inner``."""
    claimed = [property_form(one) for one in getattr(table, "properties", ())]
    inner = {
        state: {"tables": [describe(one) for one in runs.tables], "most": runs.most}
        for state, runs in getattr(table, "inner", {}).items()
    }
    return {
        "name": table.name,
        "states": list(table.states),
        "final": table.final,
        "counters": [{"name": c.name, "flag": c.flag, "cap": c.cap} for c in table.counters],
        "resets": {name: list(group) for name, group in table.reset_groups.items()},
        "lines": [line_form(line) for line in table.lines],
        "macros": [{"event": event, "exits": dict(exits)} for event, exits in table.macros],
        "rows": [row_form(row) for row in table.rows],
        **({"properties": claimed} if claimed else {}),
        **({"inner": inner} if inner else {}),
    }


def property_form(claimed: Any) -> dict[str, Any]:
    """Encode a property: its ``kind``, and its fields by name."""
    form = {name: getattr(claimed, name) for name in claimed.__dataclass_fields__}
    moves = {name: moves_form(value) for name, value in form.items() if hasattr(value, "has")}
    return {"kind": type(claimed).__name__, **form, **moves}


def moves_form(moves: Any) -> dict[str, Any]:
    """Encode moves as a tree. Raises ``TypeError`` for an unknown kind."""
    kind = type(moves).__name__
    if kind == "NamedMoves":
        return {"field": moves.field, "names": list(moves.names)}
    if kind == "GuardedMoves":
        return {"where": guard_form(moves.guard)}
    if kind == "JoinedMoves":
        return {"every" if moves.every else "some": [moves_form(one) for one in moves.members]}
    if kind == "OtherMoves":
        return {"not": moves_form(moves.member)}
    raise TypeError(f"moves of a kind that is not known: {kind}")


def line_form(line: Any) -> dict[str, Any]:
    """Encode a line with its ladder of rungs."""
    ladder = [rung_form(rung) for rung in line.ladder]
    return {
        "state": line.source,
        "event": line.event,
        "ladder": ladder,
        "resets": list(line.resets),
        "why": line.why,
    }


def rung_form(rung: Any) -> dict[str, Any]:
    """Encode a rung without its empty fields."""
    form = {
        "rung": rung.name,
        "to": rung.to,
        "needs": guard_form(rung.needs),
        "spends": list(rung.spends),
        "resets": list(rung.resets),
        "exit": rung.exit,
    }
    return {name: value for name, value in form.items() if value or name in ("rung", "to")}


def row_form(row: Any) -> dict[str, Any]:
    """Encode a plain row, with its guard in words."""
    return {
        "id": row.id,
        "source": row.source,
        "event": row.event,
        "dest": row.dest,
        "guard": row.guard.label,
        "rung": row.rung,
        "spends": list(row.spends),
        "resets": list(row.resets),
        "exit": row.exit,
        "why": row.why,
    }


def guard_form(guard: Any) -> dict[str, Any] | None:
    """Encode a guard as a tree; ``None`` for one that always holds. Raises ``TypeError`` for an unknown
    kind."""
    kind = type(guard).__name__
    if kind == "Below":
        return {"left": guard.counter, "limit": guard.limit, "yes": guard.yes, "no": guard.no}
    if kind == "Spent":
        return {"not": guard_form(guard.atom)}
    if kind in ("AllOf", "AnyOf"):
        name = "all" if kind == "AllOf" else "any"
        return {name: [guard_form(part) for part in guard.parts]} if guard.parts or name == "any" else None
    raise TypeError(f"a guard of a kind that is not known: {kind}")


def load(roots: list[str], target: str) -> Any:
    """Load the table named ``target``, only from the code below ``roots``. Imports of that code may also
    resolve to packages installed here."""
    sys.path[:0] = roots
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    name, _, attribute = (target, "", "") if target.endswith(".py") else target.rpartition(":")
    module = _from_file(name) if name.endswith(".py") else importlib.import_module(name)
    inside = Path(module.__file__ or "").resolve()
    if not any(inside.is_relative_to(Path(root).resolve()) for root in roots):
        raise ImportError(f"there is no module {name} here")
    if attribute:
        table = getattr(module, attribute)
        if not hasattr(table, "lines"):
            raise TypeError(f"{target} is not a transition table")
        return table
    tables = {
        n: value
        for n, value in vars(module).items()
        if type(value).__name__ == "Table" and hasattr(value, "lines")
    }
    if len({id(table) for table in tables.values()}) != 1:
        raise ImportError(f"{len(tables)} tables in {name}; name one: {name}:{'|'.join(tables) or 'NAME'}")
    return next(iter(tables.values()))


def default_limits(table: Any) -> dict[str, int] | None:
    """Return the limits that the table's figures are for. In older versions, whose tables do not define them,
    use those of the turn with default settings, two fallbacks and two renewable keys. ``None`` if unknown."""
    if getattr(table, "default_limits", None):
        return dict(table.default_limits())
    for turn, settings, effects in HOMES:
        try:
            runtime = importlib.import_module(effects).Runtime(
                "any", "any", usable_fallbacks=2, possible_rekeys=2
            )
            defaults = importlib.import_module(
                settings
            ).Settings.model_construct()  # regardless of the environment
            limits: Mapping[str, int] = importlib.import_module(turn).limits_of(defaults, runtime)
        except Exception:  # noqa: S112 - another version has them elsewhere; without any, bounds are formulas without figures
            continue
        return {str(name): int(value) for name, value in limits.items()}
    return None


def _from_file(path: str) -> Any:
    """Import a module from a file, as part of any package, so that its relative imports work."""
    file = Path(path).resolve()
    parts = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    sys.path.insert(0, str(folder))
    if len(parts) > 1:
        return importlib.import_module(".".join(parts))
    found = importlib.util.spec_from_file_location(file.stem, file)
    if found is None or found.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[file.stem] = module
    found.loader.exec_module(module)
    return module


def main(arguments: list[str]) -> int:
    """Print the table; any output of the loaded code goes to standard error."""
    roots, target, wants_limits = arguments[0].split(os.pathsep), arguments[1], "--limits" in arguments
    answer, sys.stdout = sys.stdout, sys.stderr
    try:
        table = load(roots, target)
        value = {"table": describe(table), "limits": default_limits(table) if wants_limits else None}
    except BaseException as error:  # loaded code may raise anything, SystemExit included
        reason = " ".join(str(error).split())
        print(f"\n{type(error).__name__}{': ' if reason else ''}{reason}", file=sys.stderr)
        return 1
    json.dump(value, answer, ensure_ascii=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


# ----------------------------------------------------------------------------------------------------
# The table as JSON for other programs, with one line, rung, or row per line of text, so that diffs are
# readable.


def as_json(diagram: Diagram) -> str:
    """Return JSON of ``name, digest, initial, final, states, counters, resets, lines, macros, arrows, rows``,
    in table order, and any ``properties`` and ``inner``; complete, so ``table_from`` is the inverse. A
    counter's ``limits`` are the names that its guards compare it with."""
    table = diagram.table
    form = describe(table)
    limits = {
        c.name: sorted({a.limit for r in table.rows for a in r.guard.atoms() if a.counter == c.name})
        for c in table.counters
    }
    parts = {
        "name": _dump(table.name),
        "digest": _dump(table.digest),
        "initial": _dump(table.initial),
        "final": _dump(table.final),
        "states": _dump(table.states),
        "counters": _many({**counter, "limits": limits[counter["name"]]} for counter in form["counters"]),
        "resets": _dump(form["resets"]),
        "lines": _many(_with_rows(table, line) for line in form["lines"]),
        "macros": _many(form["macros"]),
        "arrows": _many(
            {"source": a.source, "dest": a.dest, "labels": a.labels, "rows": a.rows} for a in diagram.arrows
        ),
        "rows": _many(form["rows"]),
        **({"properties": _many(form["properties"])} if "properties" in form else {}),
        **({"inner": _dump(form["inner"])} if "inner" in form else {}),
    }
    return "{\n" + ",\n".join(f'  "{name}": {text}' for name, text in parts.items()) + "\n}\n"


def _with_rows(table: Table, line: dict[str, Any]) -> dict[str, Any]:
    rows = table.by_event[line["state"], line["event"]]
    return {
        **line,
        "ladder": [{**rung, "row": row.id} for rung, row in zip(line["ladder"], rows, strict=True)],
    }


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _many(values: Iterable[object]) -> str:
    return "[\n" + ",\n".join(f"    {_dump(value)}" for value in values) + "\n  ]"


# ----------------------------------------------------------------------------------------------------
# A table from the JSON values of ``describe``.


def table_from(value: Any, origin: str) -> Table:
    """Build the table from a description. ``origin`` names it in messages. Raises ``ConfigError``."""
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
            f"this is not a complete description of a table ({what})", origin, "diagram --format json"
        ) from None


def expands_alike(table: Table, value: Mapping[str, Any]) -> bool:
    """Return whether this engine expands the lines to the same rows as the table's own engine."""
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
        guard_from(value.get("needs")),
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
            return GuardedMoves(guard_from(guard))
        case {"every": [*members]}:
            return JoinedMoves(tuple(map(_moves, members)), every=True)
        case {"some": [*members]}:
            return JoinedMoves(tuple(map(_moves, members)), every=False)
        case {"not": member}:
            return OtherMoves(_moves(member))
    raise ValueError(f"no moves: {value}")


def guard_from(value: Mapping[str, Any] | None) -> Guard:
    """Decode a guard from ``guard_form``. Raises ``ValueError``."""
    match value:
        case None:
            return all_of(())
        case {"left": str(counter), "limit": str(limit), "yes": str(yes), "no": str(no)}:
            return Below(counter, limit, yes, no)
        case {"not": part}:
            return ~guard_from(part)
        case {"all": [*parts]}:
            return all_of(map(guard_from, parts))
        case {"any": [*parts]}:
            return any_of(map(guard_from, parts))
    raise ValueError(f"no guard: {value}")
