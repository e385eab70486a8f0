"""What the programs of a command run in their turn, by their words. Pure."""

from __future__ import annotations

import itertools
import posixpath
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fsm_agent.approvals.programs import (
    INTERPRETERS,
    OPAQUE,
    PLAIN_OPTIONS,
    READ_SHELLS,
    RESERVED,
    RUN_BY_OPTION,
    RUNNERS,
    SHELLS,
    WRAPPERS,
    base_name,
    row_of,
)
from fsm_agent.approvals.shell_words import MAX_VALUE, UNKNOWN, Word, WordReader

MAX_DEPTH = 60
"""Levels of the tree, and of programs in one another."""
MAX_WRAPPERS = 8
"""Programs in a row that each run the next, as in ``sudo nice timeout 5 ls``."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its words. ``starts``: where programs begin in them, so that ``sudo rm x`` has two.
    ``piped``: it reads what another one writes. ``carrier``: all it does is to run others, which are read."""

    words: tuple[Word, ...]
    starts: tuple[int, ...] = (0,)
    directory: str = ""
    piped: bool = False
    carrier: bool = False

    def texts(self, start: int = 0) -> list[str]:
        """The words from ``start`` on."""
        return [word.text for word in self.words[start:]]


class ProgramReader(WordReader):
    """Reads what programs run. ``commands`` are those that were found, in their order."""

    def __init__(self, environ: Mapping[str, str], directory: str, budget: int) -> None:
        super().__init__(environ, directory, budget)
        self.commands: list[Command] = []
        self.assigns, self._depth = False, 0

    @abstractmethod
    def line(self, text: str) -> None:
        """Read a line that a word carries."""

    def _run(self, words: Sequence[Word], piped: bool) -> None:
        while words and words[0] == Word("", "open"):  # a variable that is not set leaves nothing
            self._miss("a program that the text does not name")
            words = words[1:]
        if not words:
            return
        if words[0].kind != "exact" or words[0].text in RESERVED:
            self._miss("a program that the text does not name")
        command = Command(tuple(words), self._starts(words), self._directory, piped)
        position = len(self.commands)
        self.commands.append(command)
        self._budget -= sum(len(word.text) + 1 for word in words)
        self._depth += 1
        if self._budget < 0 or self._depth > MAX_DEPTH:
            self._miss("deep nesting")
        elif [self._program(words[start:]) for start in command.starts][-1]:
            self.commands[position] = replace(command, carrier=True)
        self._depth -= 1

    def _starts(self, words: Sequence[Word]) -> tuple[int, ...]:
        """Where programs begin: the first word, and those behind ``sudo`` and its like."""
        starts = [0]
        texts = [word.text for word in words]
        while (name := base_name(texts[starts[-1]])) in WRAPPERS:
            if len(starts) > MAX_WRAPPERS:
                self._miss("deep nesting")
                break
            at = WRAPPERS[name].program(texts, starts[-1] + 1)
            if at is None:
                self._miss(f"an option of {name}")
                later = range(starts[-1] + 1, len(words))
                likely = (one for one in later if not re.match(r"-|\d|\w+=", texts[one]))
                return (*starts, *itertools.islice(likely, 3))
            self.assigns = self.assigns or any("=" in one for one in texts[starts[-1] + 1 : at])
            if at >= len(words):
                break
            if words[at].kind != "exact" or words[at].text in RESERVED:
                self._miss("a program that the text does not name")
            starts.append(at)
        return tuple(starts)

    def _program(self, words: Sequence[Word]) -> bool:
        """Look at what a program runs by its words. Are they all it does?"""
        name, rest = base_name(words[0].text), [word.text for word in words[1:]]
        if name in SHELLS:
            return self._shell(name, words)
        if name in OPAQUE or name in RUNNERS:
            self._miss(name)
        row, own = row_of([name, *rest])
        if name in RUN_BY_OPTION and row is not None:
            active = {word for word in row.active(own) if word[:1] == "-" or name != "git"}
            if any(not word.startswith(RUN_BY_OPTION[name]) for word in active):
                self._miss(f"what {name} runs")
            self._lines_in(
                [word for last, word in zip(["", *rest], rest, strict=False) if active & {last, word}]
            )
        if INTERPRETERS.fullmatch(name) and not _runs_a_file(rest):
            self._miss(f"code for {name}")
        match name:
            case "cd" | "pushd":
                self._enter([word for word in rest if word[:1] != "-"])
            case "find":
                found = [at for at, word in enumerate(rest) if word in ("-exec", "-execdir", "-ok", "-okdir")]
                for at in found[:MAX_WRAPPERS]:
                    self._miss("what find runs")
                    ends = (one for one in range(at, len(rest)) if rest[one] in (";", "+"))
                    self._run(words[at + 2 : next(ends, len(rest)) + 1], False)
            case _ if name in RUNNERS:
                operands = [at for at, word in enumerate(rest, 1) if not re.match(r"-|\d|\{", word)]
                for at in operands[:3]:
                    self._run(words[at:], True)
                self._lines_in(rest)
            case "eval":
                self.line(" ".join(rest))
            case "trap" | "alias":
                self.line(rest[0].partition("=")[2] if name == "alias" and rest else "".join(rest[:1]))
            case "env":
                at = next((at for at, word in enumerate(rest) if word.startswith(("-S", "--s"))), len(rest))
                self.line(re.sub(r"-S|--split-string=?", "", " ".join(rest[at:])))
            case "source" | ".":
                self._sourced = True
            case "read" | "mapfile" | "readarray" | "getopts":
                self._variables.update((word, UNKNOWN) for word in rest)
        return False

    def _lines_in(self, words: Sequence[str]) -> None:
        """Words that another program may run as lines of a shell."""
        for word in words:
            if " " in word:
                self._miss("a command in a word")
                self.line(re.sub(r"\A([\w.-]+=)*[!+: ]*", "", word.lstrip("-")))

    def _shell(self, name: str, words: Sequence[Word]) -> bool:
        at, code = 1, False
        while at < len(words) and words[at].text[:1] == "-" and len(words[at].text) > 1:
            option = words[at].text
            code = code or (option[1:2] != "-" and "c" in option)
            at += 1
            if option == "--":
                break
            if not set(option) <= set("-ceuxl") or option[2:3] == "-":
                self._miss(f"an option of {name}")
        if not code:
            if at >= len(words) or words[at].text.startswith(("/dev/", "/proc/", "-")):
                self._miss(f"what {name} reads")
            return False
        if at >= len(words) or name not in READ_SHELLS or words[at].kind != "exact":
            self._miss(f"code for {name}")
        if at < len(words):
            self.line(words[at].text)
        return True

    def _enter(self, operands: Sequence[str]) -> None:
        """After ``cd``."""
        target = operands[0] if operands else self._value("HOME")
        known = target.startswith(("/", "~")) or (self._directory and UNKNOWN not in target)
        self._directory = posixpath.join(self._directory, target)[:MAX_VALUE] if known else ""


def _runs_a_file(rest: Sequence[str]) -> bool:
    """Do these words of an interpreter name the file or module to run, or ask for its version?"""
    for word in rest:
        if word in PLAIN_OPTIONS:
            if word in ("-m", "--version", "-V"):
                return True
        else:
            return not word.startswith(("-", "/dev/", "/proc/"))
    return False
