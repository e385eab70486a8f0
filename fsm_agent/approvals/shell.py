"""Reading a shell's command line: pipelines of simple commands, as words without their quotes. Pure.

No parser of a shell: it never misses where a command may begin, and now and then sees one where there is
none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from fsm_agent.approvals.shell_normalize import spelled_out

_SEPARATOR = re.compile(r"[;&|()\n]+")


def pipelines(text: str) -> Iterator[list[list[str]]]:
    """The simple commands of a line; those that are joined by ``|`` together."""
    stages: list[list[str]] = []
    words: list[str] = []
    for word in _words(text):
        if not _SEPARATOR.fullmatch(word):
            words.extend(spelled_out(word))
            continue
        if words:
            stages.append(words)
            words = []
        if word not in ("|", "|&") and stages:
            yield stages
            stages = []
    if words:
        stages.append(words)
    if stages:
        yield stages


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:  # a quote without its partner
        return re.sub(r"[\"']", " ", _SEPARATOR.sub(r" ; ", text)).split()
