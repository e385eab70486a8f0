"""What is sure of a simple command: that it only reads, that no option hides in it, how it is spelled."""

from __future__ import annotations

import os
import re
import shlex
import string
from collections.abc import Sequence

from fsm_agent.approvals.programs import VERSIONED, WRAPPERS, row_of
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


def only_reads(command: Command, workdir: str) -> bool:
    """Is it a program that only reads, by its name and all its words, and only in the working directory?"""
    if not all(adds_nothing(command, layer) for layer in range(len(command.starts) - 1)):
        return False
    words = command.words[command.starts[-1] :]
    texts = [word.text for word in words]
    if texts[0] in VERSIONED and texts[1:] in (["--version"], ["-V"], ["-v"]):
        return True
    row, rest = row_of(texts)
    return (
        row is not None
        and row.reads
        and "/" not in texts[0]
        and not any(word.kind == "open" for word in words)
        and not hides_options(command)
        and not row.active(rest)
        and all(_inside(text, workdir) for text in rest)
    )


def is_plain_file(word: Word, workdir: str) -> bool:
    """Is what a redirection reads a file of the working directory? To bash ``/dev/tcp/…`` is a connection."""
    return word.kind == "exact" and not word.text.startswith("/dev/") and _inside(word.text, workdir)


def _inside(word: str, workdir: str) -> bool:
    """Is a word no file outside the working directory? A value may stand behind an option's letter or
    ``=``."""
    root = os.path.realpath(workdir)
    behind = word.lstrip("-").lstrip(string.ascii_letters) if word[:1] == "-" else ""
    values = {word, word.partition("=")[2], behind}
    for value in values - {"", "/dev/null"}:
        plain, *wild = re.split(r"[*?[]", os.path.expanduser(value), maxsplit=1)
        path = os.path.join(root, os.path.dirname(plain) if wild else plain)
        if os.path.lexists(path) and os.path.commonpath((root, os.path.realpath(path))) != root:
            return False
    return True


def spelled(words: Sequence[Word]) -> str:
    """The words as one line, quoted only where they have to be."""
    return " ".join(
        shlex.quote(word.text)
        if word.kind == "exact" and (not word.text or _QUOTED.search(word.text))
        else word.text
        for word in words
    )
