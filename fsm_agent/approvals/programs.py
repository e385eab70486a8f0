"""What the reading of commands knows of programs, as data: here which run what their words say, and in
``programs.txt`` which only read, and which options write files or run something.

A program that is not named here is one that nothing is known of: a pattern of yours may allow it."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


VERSIONED = {
    **dict.fromkeys(names("gcc g++ cmake git docker tar curl bash sqlite3 javac"), names("--version")),
    **dict.fromkeys(names("python python3"), names("--version -V")),
    **dict.fromkeys(names("node perl make"), names("--version -v")),
    "java": names("--version -version"),
}
"""Programs that with this word alone say their version, and read nothing of the folder before they do.

Not here, because a file of the folder says what runs: ``cargo`` and ``rustc`` (``rust-toolchain.toml``),
``yarn`` (``yarnPath``), ``npm`` and ``pnpm`` (``packageManager``, by corepack), ``pytest`` (``conftest.py``);
and what was not tried (``tests/security/hostile_folders.py``)."""

OPAQUE = names(
    "eval source . alias unalias trap enable shopt hash bind complete compgen fc let mapfile readarray read"
    " getopts coproc declare local typeset readonly"
)
"""They run, or change how the shell reads, what their words alone do not say."""
RESERVED = names("{ } ! [[ ]] if then else elif fi for while until do done case esac in select function")
"""Words of the shell itself, which are no programs."""
RUNNERS = names(
    "xargs parallel watch flock script entr at batch strace ltrace fakeroot unshare nsenter systemd-run"
    " runuser tmux screen expect rlwrap npx bwrap firejail pkexec gdb vi vim nvim ex less"
)
"""They run others behind words of their own, or in one word."""
RUN_BY_OPTION: dict[str, tuple[str, ...]] = {
    "git": ("-C", "-O", "--output", "--git-dir", "--work-tree"),
    "find": ("-delete", "-fls", "-fprint"),
    "sed": ("-i", "--in-place"),
    "tar": ("-C", "-P", "--directory"),
    "zip": ("--test",),
    **dict.fromkeys(("rsync", "man", "awk", "gawk", "mawk", "printf", "test", "["), ()),
}
"""What ``programs.txt`` names of theirs may hold the line of a shell, but for what begins like these."""
_RUN_VARIABLES = re.compile(
    r"(\w+_)?(PAGER|EDITOR|SSH|SSH_COMMAND|ASKPASS|PROXY_COMMAND)|VISUAL|BROWSER|PROMPT_COMMAND|BASH_ENV|ENV|PATH|IFS"
    r"|LD_\w+|DYLD_\w+|PYTHON\w+|PERL5\w+|NODE_OPTIONS|GIT_\w+|BASH_FUNC\w*"
)
STATEFUL = names("cd pushd popd exec set shift export unset umask ulimit return builtin")
"""They change what the commands behind them do."""
READ_SHELLS = frozenset(("sh", "bash", "dash"))
"""What ``-c`` gives to them is read as the line itself is."""
SHELLS = READ_SHELLS | {"zsh", "ksh", "fish", "ash", "su", "csh", "tcsh"}
INTERPRETERS = re.compile(r"(?:python|perl|ruby|node|php|lua|osascript|pwsh|deno|tclsh)[\d.]*")
PLAIN_OPTIONS = names("-m -u -B -E -I -s -O -OO -w --version -V")
"""Options of interpreters with which the first operand is the file to run, or what ``-m`` names."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A program that runs the rest of its words. ``flags``: its letters without a value; ``valued``: those
    with one; ``operands``: words of its own before the program. ``plain``: it adds no power to it."""

    flags: str = ""
    valued: str = ""
    operands: int = 0
    plain: bool = False

    def program(self, words: Sequence[str], at: int) -> int | None:
        """Where the program stands, looking from ``at`` on; ``None`` for an option that is not known."""
        if words[at - 1] == "command" and words[at : at + 1] in (["-v"], ["-V"]):
            return len(words)  # where is it?
        while at < len(words) and words[at][:1] == "-":
            option = words[at]
            at += 1
            if option == "--":
                break
            for number, letter in enumerate(option[1:], 1):
                if letter in self.valued:
                    at += number == len(option) - 1
                    break
                if letter not in self.flags:
                    return None
        while at < len(words) and re.match(r"[A-Za-z_]\w*=", words[at]):
            at += 1
        return at + self.operands


WRAPPERS = {
    "sudo": Wrapper("bEHknKPS", "ugpCTUDRrth"),
    "doas": Wrapper("nL", "uC"),
    "env": Wrapper("i0v", "uC"),
    "chroot": Wrapper("", "", 1),
    "busybox": Wrapper(),
    "exec": Wrapper("cl", "a"),
    "builtin": Wrapper(),
    "command": Wrapper("p", plain=True),
    "time": Wrapper("p", plain=True),
    "nohup": Wrapper(plain=True),
    "nice": Wrapper("0123456789", "n", plain=True),
    "ionice": Wrapper("t", "cn", plain=True),
    "timeout": Wrapper("v", "ks", 1, plain=True),
    "stdbuf": Wrapper("", "ioe", plain=True),
    "setsid": Wrapper("cfw", plain=True),
}


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """What the table says of a program. ``reads``: it is among the readers."""

    reads: bool
    options: tuple[str, ...]
    operands: re.Pattern[str] | None

    @property
    def harmless(self) -> bool:
        """Can none of its words make it do anything but read?"""
        return self.reads and not self.options and self.operands is None

    def active(self, words: Sequence[str]) -> list[str]:
        """Those of the words that make it write, run or reach further."""
        end = words.index("--") if "--" in words else len(words)
        found = [
            word for word in words[:end] if word[:1] == "-" and any(_is(word, one) for one in self.options)
        ]
        operands = [*(word for word in words[:end] if word[:1] != "-" or word == "-"), *words[end + 1 :]]
        if self.operands is not None and not self.operands.fullmatch("\n".join(operands)):
            found += operands or [""]
        return found


def row_of(words: Sequence[str]) -> tuple[ProgramRow | None, list[str]]:
    """What is known of the program that ``words`` begins with, and the words that belong to it."""
    rows, name = _rows(), base_name(words[0])
    if len(words) > 1 and (row := rows.get(f"{name}/{words[1]}")) is not None:
        return row, list(words[2:])
    return rows.get(name), list(words[1:])


def reading_programs() -> frozenset[str]:
    """Return the programs that only read, ``git/status`` among them."""
    return frozenset(name for name, row in _rows().items() if row.reads)


def is_run_variable(name: str) -> bool:
    """Say whether a variable of this name holds what programs run, or where it is found."""
    return _RUN_VARIABLES.fullmatch(name) is not None


def base_name(word: str) -> str:
    """A program's name without its folder."""
    return posixpath.basename(word)


def _is(word: str, option: str) -> bool:
    """Does the word contain this option, perhaps shortened or behind other letters?"""
    if option.endswith("*"):
        return word.startswith(option[:-1])
    if option.startswith("--"):
        return len(word) > 2 and option.startswith(word.partition("=")[0]) and word.startswith("--")
    return option[1] in word[1:] and word[1:2] != "-" if len(option) == 2 else word == option


@functools.cache
def _rows() -> dict[str, ProgramRow]:
    rows: dict[str, ProgramRow] = {}
    text = files(__package__).joinpath("programs.txt").read_text("utf-8")
    reads = False
    for line in re.sub(r"(?m)^#.*\n|\n(?=[ \t])", "", text).splitlines():
        head, separator, operands = line.partition("::")
        reads = head == "[readers]" or (reads and head != "[others]")
        words = [] if line[:1] == "[" else head.split()
        options = tuple(word for word in words if word[:1] == "-")
        row = ProgramRow(reads, options, re.compile(operands.strip()) if separator else None)
        for word in words[: len(words) - len(options)]:
            program, *commands = word.split("/")
            rows.update({f"{program}/{one}": row for one in commands} or {program: row})
    return rows
