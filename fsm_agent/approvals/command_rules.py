"""What is sure of a simple command: that it only reads, that no option hides in it, how it is spelled."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from fsm_agent.approvals.programs import VERSIONED, WRAPPERS, row_of
from fsm_agent.approvals.readers import ReaderFolder
from fsm_agent.approvals.shell_programs import Command
from fsm_agent.approvals.shell_words import Word

_QUOTED = re.compile(r"[\s\"'\\$`;&|<>()]")


def adds_nothing(command: Command, layer: int) -> bool:
    """Say whether the program at this start only runs the next one, as ``timeout`` does."""
    wrapper = WRAPPERS.get(command.words[command.starts[layer]].text)
    return wrapper is not None and wrapper.plain


def hides_options(command: Command) -> bool:
    """Could an option come out of a word that does not show it, for a program to which options matter?"""
    row, _ = row_of(command.texts(command.starts[-1]))
    return not (row is not None and row.harmless) and any(word.may_be_option for word in command.words)


def only_reads(command: Command, folder: ReaderFolder) -> bool:
    """Is it a program that only reads, by its name and all its words, and only in the working directory? What
    the folder makes of it is another question: ``ReaderFolder.why_ask``."""
    if not all(adds_nothing(command, layer) for layer in range(len(command.starts) - 1)):
        return False
    words = command.words[command.starts[-1] :]
    texts = [word.text for word in words]
    if len(texts) == 2 and texts[1] in VERSIONED.get(texts[0], ()):
        return True
    row, rest = row_of(texts)
    return (
        row is not None
        and row.reads
        and "/" not in texts[0]
        and not any(word.kind == "open" for word in words)
        and not hides_options(command)
        and not row.active(rest)
        and folder.inside(texts[0], words[len(words) - len(rest) :])
    )


def is_plain_file(word: Word, folder: ReaderFolder) -> bool:
    """Is what a redirection reads a file of the working directory? To bash ``/dev/tcp/…`` is a connection."""
    return word.kind == "exact" and not word.text.startswith("/dev/") and folder.is_inside(word.text)


def spelled(words: Sequence[Word]) -> str:
    """The words as one line, quoted only where they have to be."""
    return " ".join(
        shlex.quote(word.text)
        if word.kind == "exact" and (not word.text or _QUOTED.search(word.text))
        else word.text
        for word in words
    )
