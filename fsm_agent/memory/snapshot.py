"""What was remembered, as the prompt of a new session shows it: frozen there, whatever is written later
(MEM-02)."""

from __future__ import annotations

from fsm_agent.memory.entries import SEPARATOR, EntryRefused, text_of
from fsm_agent.memory.files import Held, MemoryFile, Notes
from fsm_agent.prompt.book import Recalled
from fsm_agent.prompt.readers import SMALLEST_CAP, capped
from fsm_agent.support.injection_scan import scan

MOST_EXTERNAL = SMALLEST_CAP
"""Characters that an external memory has in the prompt."""


def recalled(notes: Notes | None, external: str | None = "", problem: str = "") -> Recalled:
    """Both files, and the block of an external memory, for the prompt. What cannot be used is left out with
    a notice. ``external`` is ``None``, with the ``problem`` in words, when that memory did not answer."""
    notices = [problem] if problem else []
    return Recalled(
        _layer("# Memory: what you noted in earlier sessions", notes.memory, notices) if notes else "",
        _layer("# The user: what you noted about them in earlier sessions", notes.user, notices)
        if notes
        else "",
        _block((external or "").strip(), notices),
        tuple(notices),
        whole=external is not None,
    )


def _block(text: str, notices: list[str]) -> str:
    if not text:
        return ""
    if len(text) > MOST_EXTERNAL:
        notices.append(
            f"the block of the external memory is too long ({len(text):,} characters): the prompt holds its"
            f" beginning and its end, {MOST_EXTERNAL:,} characters"
        )
    shown = capped(_safe(text, "the external memory", notices), MOST_EXTERNAL)
    return f"# External memory\n\n{shown}"


def _layer(title: str, file: MemoryFile, notices: list[str]) -> str:
    try:
        held = file.read()
    except (OSError, EntryRefused) as error:
        notices.append(f"{file.path.name} could not be used: {error}")
        return ""
    shown = _shown(held, file.path.name, notices)
    return f"{title} ({held.usage})\n\n{text_of(shown)}" if shown else ""


def _shown(held: Held, name: str, notices: list[str]) -> list[str]:
    """Entries up to the limit; one that would take the agent over is replaced, in the snapshot only
    (MEM-04)."""
    shown: list[str] = []
    left = held.limit
    for entry in held.entries:
        left -= len(entry) + (len(SEPARATOR) + 2 if shown else 0)
        if left < 0:
            notices.append(
                f"{name} is over its limit ({held.usage}): the prompt holds the first {len(shown)} entries"
            )
            break
        shown.append(_safe(entry, name, notices))
    return shown


def _safe(entry: str, name: str, notices: list[str]) -> str:
    if not (reasons := scan(entry, strict=True)):
        return entry
    why = "; ".join(reason.rpartition(" (line")[0] for reason in reasons)
    notices.append(f"an entry of {name} was left out of the prompt: {why}")
    return f"[an entry was left out: it holds {why}]"
