"""The entries of a memory file as values: reading them out of its text, and changing them all or not at
all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fsm_agent.support.injection_scan import scan
from fsm_agent.support.texts import clean, one_line

SEPARATOR = "§"
"""Stands alone on the line between two entries."""


class Operation(BaseModel):
    """One change: add ``content``; put ``content`` in place of the entry that holds ``old_text``; or remove
    that entry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Literal["add", "replace", "remove"]
    content: Annotated[str, Field(description="The new entry; for add and replace.")] = ""
    old_text: Annotated[
        str, Field(description="A part of the old entry that no other entry has; for replace and remove.")
    ] = ""


class EntryRefused(Exception):  # a result, not a bug
    """The change cannot be made, in words for the model; nothing was changed."""


def entries_of(text: str) -> list[str]:
    """The entries in a file's text, without blank ones."""
    entries: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == SEPARATOR:
            entries.append([])
        else:
            entries[-1].append(line)
    return [entry for lines in entries if (entry := "\n".join(lines).strip())]


def text_of(entries: Sequence[str]) -> str:
    """The text that ``entries_of`` reads back; its length is what the limits count."""
    return f"\n{SEPARATOR}\n".join(entries)


def changed(entries: Sequence[str], operations: Sequence[Operation], limit: int) -> list[str]:
    """The entries after all operations. ``limit`` in characters holds of the outcome, so room can be made in
    the same list; a file that is over its limit already may still shrink. Raises ``EntryRefused``."""
    after = list(entries)
    for operation in operations:
        _apply(after, operation)
    size = len(text_of(after))
    if size > limit and size >= len(text_of(entries)):
        raise EntryRefused(
            f"That would take {size:,} of {limit:,} characters. Shorten, merge or remove entries that matter"
            " less, in the same call (operations) or before it."
        )
    return after


def _apply(entries: list[str], operation: Operation) -> None:
    if operation.action == "remove":
        del entries[_found(entries, operation)]
        return
    entry = _entry(operation)
    if operation.action == "replace":
        entries[_found(entries, operation)] = entry
    elif entry not in entries:
        entries.append(entry)


def _entry(operation: Operation) -> str:
    entry = clean(operation.content).strip()
    if not entry:
        raise EntryRefused(f"{operation.action} needs content: the text of the entry.")
    if any(line.strip() == SEPARATOR for line in entry.splitlines()):
        raise EntryRefused(
            f"An entry cannot hold a line with only {SEPARATOR}, which separates entries. Add two entries"
            " instead."
        )
    if reasons := scan(entry, strict=True):
        raise EntryRefused(
            f"Not stored, because every later session would read it as its own: {'; '.join(reasons)}."
        )
    return entry


def _found(entries: Sequence[str], operation: Operation) -> int:
    part = clean(operation.old_text).strip()
    if not part:
        raise EntryRefused(f"{operation.action} needs old_text: a part of the entry that is meant.")
    places = [index for index, entry in enumerate(entries) if part in entry]
    if not places:
        raise EntryRefused(f"No entry holds {one_line(part, 120)!r}.")
    if len(places) > 1 and entries[places[0]] != part:
        some = "; ".join(one_line(entries[place], 60) for place in places[:5])
        raise EntryRefused(f"{len(places)} entries hold {one_line(part, 120)!r}: {some}. Take a longer part.")
    return places[0]
