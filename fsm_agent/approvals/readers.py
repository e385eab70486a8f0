"""What a program that only reads would take from the folder that it runs in, or would show of what is not for
others: why such a command needs a yes after all.

A reader is taken for one by its name and its words (``programs.txt``). The folder can make it something else:
by a file of its name that is found first, by a version manager that lets a file choose the program, by
variables that name files of the folder, by the settings of a repository. All that is looked at when the call
is asked about. That is sound because a line of readers writes nothing, and runs alone: what changes the
folder in between was approved itself, or held by a sandbox."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence

from fsm_agent.approvals.git_settings import runs_by_git
from fsm_agent.approvals.key_files import below, holds_keys, matched
from fsm_agent.approvals.programs import names
from fsm_agent.approvals.shell_programs import Command
from fsm_agent.approvals.shell_words import Word

BUILTINS = names("echo printf test [ true false : pwd type command cd")
"""Of bash, which looks for no file of this name."""
_SHIMS = "shims"
"""The folder of a version manager's stand-ins: they read in the working directory what they are to run."""
_SWITCHERS = names(
    "asdf mise rtx rustup volta volta-shim proto proto-shim corepack hermit aqua aqua-proxy pyenv rbenv"
)
_LISTS = names("LD_LIBRARY_PATH DYLD_LIBRARY_PATH PYTHONPATH PERL5LIB PERLLIB RUBYLIB NODE_PATH CLASSPATH")
"""Variables that are lists of folders, in which an empty one stands for the working directory."""
_FILES = names(
    "LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES BASH_ENV PYTHONHOME PYTHONSTARTUP PERL5OPT"
    " RUBYOPT NODE_OPTIONS TAR_OPTIONS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS RIPGREP_CONFIG_PATH"
    " GCC_EXEC_PREFIX MAGIC COMPILER_PATH"
)
"""Variables that name files which a program runs or obeys."""
_SCRIPTED = names("awk gawk mawk sed jq")
"""The first operand of these is a program of theirs and no file."""
_OPENS_NOTHING = names("echo printf true false :")
_SHOWS_NO_CONTENTS = _OPENS_NOTHING | names(
    "ls stat du df find test [ basename dirname readlink realpath tree file wc which type pwd"
)
_RECURSES = {
    **dict.fromkeys(("grep", "egrep", "fgrep"), re.compile(r"-[A-Za-z]*[rRd].*|--(rec|der|dir).*")),
    "rg": re.compile(r""),
    "diff": re.compile(r"-[A-Za-z]*r.*|--rec.*"),
}
"""Options with which a program reads all files of a folder; an empty expression when it always does."""


class ReaderFolder:
    """The folder that the readers of one line run in. ``environ``: the variables that they see."""

    def __init__(self, workdir: str, environ: Mapping[str, str] = os.environ) -> None:
        self.workdir, self._environ = os.path.realpath(workdir), environ
        self._asked: dict[str, str] = {}

    def why_ask(self, command: Command) -> str:
        """Why a command that only reads, by its words, needs a yes, as one sentence; empty when it needs
        none."""
        last = command.starts[-1]
        name, *rest = command.texts(last)
        programs = (command.words[start].text for start in command.starts)
        sub = next((word for word in rest if word[:1] != "-"), "")
        return (
            self._named_by_variables()
            or next((reason for one in programs if (reason := self._found(one))), "")
            or (self._by_git(sub) if name == "git" and rest != ["--version"] else "")
            or ("" if name in _SHOWS_NO_CONTENTS else self._shows(name, command.words[last + 1 :]))
        )

    def _shows(self, name: str, words: Sequence[Word]) -> str:
        named = next((reason for word in words if (reason := self.why_not_shown(word))), "")
        return named or self._searched(name, [word.text for word in words])

    def why_not_shown(self, word: Word) -> str:
        """Why a file that a word may name is not shown unasked."""
        for value in {*values_in(word.text), *word.text.split(":")} - {"", "/dev/null"}:
            wild = word.kind != "exact" and re.search(r"[*?[]", value)
            for path in matched(value, self.workdir) if wild else (value,):
                if reason := holds_keys(os.path.expanduser(path), self.workdir):
                    return reason
        return ""

    def inside(self, name: str, words: Sequence[Word]) -> bool:
        """Does none of the words of a program name a place outside the working directory? By the name alone:
        it does not matter what is there now."""
        if name in _OPENS_NOTHING:
            words = [word for word in words if word.kind != "exact"]
        if name in _SCRIPTED:
            at = next((at for at, word in enumerate(words) if word.text[:1] != "-"), len(words))
            words = [*words[:at], *words[at + 1 :]]
        return all(self.is_inside(word.text) for word in words)

    def is_inside(self, word: str) -> bool:
        """Is a word no file outside the working directory? A value may stand behind an option's letter or
        ``=``."""
        for value in {*values_in(word)} - {"", "/dev/null"}:
            plain, *wild = re.split(r"[*?[]", os.path.expanduser(value), maxsplit=1)
            if not self._holds(os.path.dirname(plain) if wild else plain):
                return False
        return True

    def _holds(self, path: str) -> bool:
        real = os.path.realpath(os.path.join(self.workdir, path))
        return os.path.commonpath((self.workdir, real)) == self.workdir

    def _found(self, name: str) -> str:
        """Why the file that runs under a name is not one of the system."""
        if name in BUILTINS:
            return ""
        home = os.path.realpath(os.path.expanduser("~"))
        for entry in self._environ.get("PATH", os.defpath).split(os.pathsep):
            path = os.path.join(self.workdir, entry, name)
            if not (os.path.isfile(path) and os.access(path, os.X_OK)):
                continue
            real = os.path.realpath(path)
            if self._holds(entry) or self._holds(real):
                return f"{name} is {path}, a file of the working directory"
            switched = _SHIMS in path.split("/") or os.path.basename(real) in _SWITCHERS
            if switched or (home != "/" and os.path.commonpath((home, real)) == home):
                return f"{name} is {path}: a file of the folder may choose what it runs"
            return ""
        return ""

    def _by_git(self, sub: str) -> str:
        if sub not in self._asked:
            program = next(
                (
                    path
                    for entry in self._environ.get("PATH", os.defpath).split(os.pathsep)
                    if os.access(path := os.path.join(self.workdir, entry, "git"), os.X_OK)
                ),
                "",
            )
            self._asked[sub] = runs_by_git(program, sub, self.workdir) if program else ""
        return self._asked[sub]

    def _named_by_variables(self) -> str:
        for name, value in self._environ.items():
            if name in _LISTS and value:
                parts = value.split(os.pathsep)
            elif name in _FILES:
                parts = [one for one in re.split(r"[\s:=,@]+", value) if "/" in one or self._is_there(one)]
            else:
                continue
            if any(self._holds(part) for part in parts):
                return f"the variable {name} names files of the working directory"
        return ""

    def _is_there(self, name: str) -> bool:
        return bool(name) and os.path.lexists(os.path.join(self.workdir, name))

    def _searched(self, name: str, rest: Sequence[str]) -> str:
        option = _RECURSES.get(name)
        if option is None or not (not option.pattern or any(option.fullmatch(word) for word in rest)):
            return ""
        operands = [
            word for word in rest if word[:1] != "-" and os.path.isdir(os.path.join(self.workdir, word))
        ]
        return next((why for one in operands or ["."] if (why := below(one, self.workdir))), "")


def values_in(word: str) -> Iterator[str]:
    """The word itself, and what stands behind an option's letters or ``=`` in it."""
    yield word
    yield word.partition("=")[2]
    if word[:1] == "-":
        yield word.lstrip("-").lstrip(string.ascii_letters)
