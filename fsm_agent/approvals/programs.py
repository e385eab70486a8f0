"""The command reader's tables of programs: here, those that run their arguments; in ``programs.txt``, those
that only read, and the options that write files or run something.

Nothing is assumed about a program that is not listed; a user's pattern may allow it."""

from __future__ import annotations

import codecs
import functools
import itertools
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tree_sitter import Node


def names(text: str) -> frozenset[str]:
    """Split a string into a set of words, which reads better than a set of quoted ones."""
    return frozenset(text.split())


VERSIONED = {
    **dict.fromkeys(names("gcc g++ cmake git docker tar curl bash sqlite3 javac"), names("--version")),
    **dict.fromkeys(names("python python3"), names("--version -V")),
    **dict.fromkeys(names("node perl make"), names("--version -v")),
    "java": names("--version -version"),
}
"""Programs that, with this word alone, print their version and read nothing from the folder first.

Not listed, because a file in the folder decides what runs: ``cargo`` and ``rustc``
(``rust-toolchain.toml``), ``yarn`` (``yarnPath``), ``npm`` and ``pnpm`` (``packageManager``, by corepack),
``pytest`` (``conftest.py``); nor what was not tested (``tests/security/hostile_folders.py``)."""

OPAQUE = names(
    "eval source . alias unalias trap enable shopt hash bind complete compgen fc let mapfile readarray read"
    " getopts coproc declare local typeset readonly"
)
"""Commands that run code, or change how the shell parses, in ways that their words do not show."""
RESERVED = names("{ } ! [[ ]] if then else elif fi for while until do done case esac in select function")
"""Keywords of the shell, which are not programs."""
RUNNERS = names(
    "xargs parallel watch flock script entr at batch strace ltrace fakeroot unshare nsenter systemd-run"
    " runuser tmux screen expect rlwrap npx bwrap firejail pkexec gdb vi vim nvim ex less"
)
"""Programs that run other programs, given after their own words or in a single word."""
RUN_BY_OPTION: dict[str, tuple[str, ...]] = {
    "git": ("-C", "-O", "--output", "--git-dir", "--work-tree"),
    "find": ("-delete", "-fls", "-fprint"),
    "sed": ("-i", "--in-place"),
    "tar": ("-C", "-P", "--directory"),
    "zip": ("--test",),
    **dict.fromkeys(("rsync", "man", "awk", "gawk", "mawk", "printf", "test", "["), ()),
}
"""Words that ``programs.txt`` lists for these programs may hold a shell command, except those that begin
like this."""
_RUN_VARIABLES = re.compile(
    r"(\w+_)?(PAGER|EDITOR|SSH|SSH_COMMAND|ASKPASS|PROXY_COMMAND)|VISUAL|BROWSER|PROMPT_COMMAND|BASH_ENV|ENV|PATH|IFS"
    r"|LD_\w+|DYLD_\w+|PYTHON\w+|PERL5\w+|NODE_OPTIONS|GIT_\w+|BASH_FUNC\w*"
)
STATEFUL = names("cd pushd popd exec set shift export unset umask ulimit return builtin")
"""Commands that affect the commands after them."""
READ_SHELLS = frozenset(("sh", "bash", "dash"))
"""Their ``-c`` argument is read like the line itself."""
SHELLS = READ_SHELLS | {"zsh", "ksh", "fish", "ash", "su", "csh", "tcsh"}
INTERPRETERS = re.compile(r"(?:python|perl|ruby|node|php|lua|osascript|pwsh|deno|tclsh)[\d.]*")
PLAIN_OPTIONS = names("-m -u -B -E -I -s -O -OO -w --version -V")
"""Options of interpreters after which the first operand is the file to run, or the module that ``-m``
names."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A program that runs the rest of its words. ``flags``: option letters without a value; ``valued``:
    letters with one; ``operands``: operands before the program. ``plain``: it gives the program no
    additional power."""

    flags: str = ""
    valued: str = ""
    operands: int = 0
    plain: bool = False

    def program(self, words: Sequence[str], at: int) -> int | None:
        """Return the index of the program, searching from ``at``; ``None`` after an unknown option."""
        if words[at - 1] == "command" and words[at : at + 1] in (["-v"], ["-V"]):
            return len(words)  # only looks a program up
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
    """A row of the table of programs. ``reads``: the program only reads."""

    reads: bool
    options: tuple[str, ...]
    operands: re.Pattern[str] | None

    @property
    def harmless(self) -> bool:
        """Return whether no word can make the program do more than read."""
        return self.reads and not self.options and self.operands is None

    def active(self, words: Sequence[str]) -> list[str]:
        """Return the words that make the program write, run something or reach further."""
        end = words.index("--") if "--" in words else len(words)
        found = [
            word for word in words[:end] if word[:1] == "-" and any(_is(word, one) for one in self.options)
        ]
        operands = [*(word for word in words[:end] if word[:1] != "-" or word == "-"), *words[end + 1 :]]
        if self.operands is not None and not self.operands.fullmatch("\n".join(operands)):
            found += operands or [""]
        return found


def row_of(words: Sequence[str]) -> tuple[ProgramRow | None, list[str]]:
    """Return the row for the program that ``words`` begins with, and the remaining words."""
    rows, name = _rows(), base_name(words[0])
    if len(words) > 1 and (row := rows.get(f"{name}/{words[1]}")) is not None:
        return row, list(words[2:])
    return rows.get(name), list(words[1:])


def reading_programs() -> frozenset[str]:
    """Return the programs that only read, ``git/status`` among them."""
    return frozenset(name for name, row in _rows().items() if row.reads)


def is_run_variable(name: str) -> bool:
    """Return whether a variable of this name holds what programs run, or where it is found."""
    return _RUN_VARIABLES.fullmatch(name) is not None


def base_name(word: str) -> str:
    """Return the program name in a path. Command paths are POSIX paths on every platform."""
    return posixpath.basename(word)


def _is(word: str, option: str) -> bool:
    """Return whether the word contains this option, perhaps abbreviated or combined with other letters."""
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


# The words of a command after quote removal and a guess at each variable.


MAX_VALUE = 4_096
"""Maximum characters of a variable's value."""
UNKNOWN = "\0"
"""Placeholder for text that is not known."""
LITERALS = frozenset(("==", "=~", "$"))
"""Anonymous nodes that are words of a command."""

_LEAVES = frozenset(("word", "number", "test_operator", "variable_name", "special_variable_name", *LITERALS))
_ACTIVE = re.compile(r"[\s|&;()<>\"'`$]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_IN_QUOTES = re.compile(r"\\([$`\"\\\n])")
_LIVE_IN_QUOTES = re.compile(r"[`\"]|\$(?![\s|)/.,:;\\]|$)")
_BRACES = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_OPERATORS = (":-", "-", ":=", "=")
_UNSURE = frozenset(("?", "$", "!", "#", "0", "-", "_", "OLDPWD", "RANDOM"))


@dataclass(frozen=True, slots=True)
class Word:
    """A word as the shell expands it. ``exact``: this text. ``names``: names of files that match ``text``,
    as for ``*.py`` or ``~/x``. ``open``: unknown; ``text`` is a guess."""

    text: str
    kind: Literal["exact", "names", "open"] = "exact"

    @property
    def may_be_option(self) -> bool:
        """Return whether the word could expand to an option that its text does not show."""
        return self.kind == "open" or (self.kind == "names" and self.text[:1] in "*?[-")


class WordReader(ABC):
    """Reads the words in a line's syntax tree. ``unread`` is the first construct that was not understood."""

    def __init__(self, environ: Mapping[str, str], directory: str, budget: int) -> None:
        self.unread = ""
        self._environ, self._directory, self._budget = environ, directory, budget
        self._variables: dict[str, str] = {}
        self._sourced, self._data = False, b""

    @abstractmethod
    def _inside(self, node: Node) -> None: ...

    @abstractmethod
    def _substitution(self, node: Node) -> str: ...

    def _miss(self, what: str) -> None:
        self.unread = self.unread or what

    def _text(self, node: Node) -> str:
        return self._data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _words(self, node: Node) -> list[Word]:
        pieces = list(self._pieces(node))
        text = "".join(piece for piece, _ in pieces)
        bare = "".join(piece if how == "bare" else "Q" * len(piece) for piece, how in pieces)
        ways = {how for _, how in pieces}
        if "{" in bare and "}" in bare and ("," in bare or ".." in bare):
            self._miss("braces")
            return [Word(one, "open") for one in expand_braces(text)]
        if "split" in ways:
            return [Word(one, "open") for one in text.split() or [""]]
        if "value" in ways or re.search("[=:]~", bare):
            return [Word(text, "open")]
        return [Word(text, "names" if bare[:1] == "~" or re.search(r"[*?\[]", bare) else "exact")]

    def _pieces(self, node: Node, quoted: bool = False) -> Iterator[tuple[str, str]]:
        """Yield (text, how): ``bare`` and ``quoted`` are literal, ``split`` and ``value`` are guesses, with
        or without word splitting."""
        open_kind = "value" if quoted else "split"
        match node.type:
            case kind if kind in _LEAVES and not node.named_child_count:
                yield from self._bare(self._text(node))
            case "raw_string":
                if "'" in (text := self._text(node)[1:-1]):
                    self._miss("a quote")
                yield text, "quoted"
            case "concatenation":
                at = node.start_byte
                for child in node.children:
                    if child.start_byte != at or (child.type == "$" and child.end_byte < node.end_byte):
                        self._miss("a blank")  # or $"…"
                    at = child.end_byte
                    yield from self._pieces(child)
            case "string":
                yield from self._string(node)
            case "simple_expansion":
                yield self._value(self._text(node.children[-1])), open_kind
            case "expansion":
                yield self._expansion(node), open_kind
            case "command_substitution":
                yield self._substitution(node), open_kind
            case "ansi_c_string":
                self._miss("escapes of another kind")
                yield _decode_escapes(self._text(node)[2:-1]), "quoted"
            case other:
                self._miss(other.replace("_", " "))
                self._inside(node)
                yield self._text(node) if not node.named_child_count else UNKNOWN, open_kind

    def _bare(self, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        for match in _ESCAPE.finditer(text):
            if match[1] == "\n":
                self._miss("a blank")
            yield from ((text[at : match.start()], "bare"), (match[1].replace("\n", ""), "quoted"))
            at = match.end()
        rest = text[at:]
        if text != "$" and _ACTIVE.search(_ESCAPE.sub("", text)):
            self._miss("a quote")
        yield rest, "bare"

    def _string(self, node: Node) -> Iterator[tuple[str, str]]:
        parts = [child for child in node.children if child.type not in ('"', "string_content", "$")]
        if not parts:
            text = self._text(node)[1:-1]
            if _LIVE_IN_QUOTES.search(_ESCAPE.sub("", text)):
                self._miss("a quote")
            yield _IN_QUOTES.sub(lambda match: match[1].replace("\n", ""), text), "quoted"
            return
        at = node.start_byte + 1
        for child in parts:
            between = self._data[at : child.start_byte].decode("utf-8", "replace")
            yield _IN_QUOTES.sub(lambda match: match[1].replace("\n", ""), between), "quoted"
            yield from self._pieces(child, quoted=True)
            at = child.end_byte
        yield self._data[at : node.end_byte - 1].decode("utf-8", "replace"), "quoted"

    def _value(self, name: str) -> str:
        """Guess the value of a variable; an unset one is empty, as in the shell."""
        self._budget -= 1
        if name == "PWD":
            value = self._directory or UNKNOWN
        elif name in self._variables:
            value = self._variables[name]
        elif name in ("HOME", "IFS"):
            value = self._environ.get("HOME", "~") if name == "HOME" else " "
        elif name in _UNSURE:
            value = UNKNOWN
        else:
            value = self._environ.get(name, UNKNOWN if self._sourced else "")[:MAX_VALUE]
        self._budget -= len(value)
        return value if self._budget > 0 else UNKNOWN

    def _expansion(self, node: Node) -> str:
        names = [child for child in node.children if child.type in ("variable_name", "special_variable_name")]
        signs = [child.type for child in node.children if not child.is_named]
        value = self._value(self._text(names[0])) if names else UNKNOWN
        if len(node.children) == 3 and names and [sign.strip() for sign in signs] == ["${", "}"]:
            return value
        self._miss("an expansion")
        if len(signs) == 3 and signs[1] in _OPERATORS:
            other = " ".join(word.text for one in node.named_children[1:] for word in self._words(one))
            return value or other
        self._inside(node)
        return UNKNOWN


def expand_braces(word: str) -> list[str]:
    """Expand ``{a,b}`` like bash, to at most 64 words."""
    words = [word]
    while len(word) < 1_000 and len(words) < 64 and (match := _BRACES.search(words[0])) is not None:
        words = [
            one[: found.start()] + part + one[found.end() :]
            for one in words
            if (found := _BRACES.search(one))
            for part in match[1].split(",")
        ]
    return words


def _decode_escapes(text: str) -> str:
    try:
        return codecs.decode(text.replace("\\e", "\x1b"), "unicode_escape")
    except ValueError:
        return text


MAX_DEPTH = 60
"""Maximum nesting of the tree, and of programs in programs."""
MAX_WRAPPERS = 8
"""Maximum wrappers in a row, as in ``sudo nice timeout 5 ls``."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its words. ``starts``: indexes where programs begin, so that ``sudo rm x`` has two.
    ``piped``: reads another program's output. ``carrier``: only runs other programs, which are listed
    themselves."""

    words: tuple[Word, ...]
    starts: tuple[int, ...] = (0,)
    directory: str = ""
    piped: bool = False
    carrier: bool = False

    def texts(self, start: int = 0) -> list[str]:
        """Return the words from ``start`` on, with their quotes removed."""
        return [word.text for word in self.words[start:]]


class ProgramReader(WordReader):
    """Finds the programs that commands run. ``commands`` are in the order of the text."""

    def __init__(self, environ: Mapping[str, str], directory: str, budget: int) -> None:
        super().__init__(environ, directory, budget)
        self.commands: list[Command] = []
        self.assigns, self._depth = False, 0

    @abstractmethod
    def line(self, text: str) -> None:
        """Read a line contained in a word."""

    def _run(self, words: Sequence[Word], piped: bool) -> None:
        while words and words[0] == Word("", "open"):  # an unset variable expands to nothing
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
        """Return where programs begin: at the first word, and after ``sudo`` and the like."""
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
        """Record what a program runs according to its words; return whether it does nothing else."""
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
        """Read words that another program may run as shell commands."""
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
        """Follow a ``cd``."""
        target = operands[0] if operands else self._value("HOME")
        known = target.startswith(("/", "~")) or (self._directory and UNKNOWN not in target)
        self._directory = posixpath.join(self._directory, target)[:MAX_VALUE] if known else ""


def _runs_a_file(rest: Sequence[str]) -> bool:
    """Return whether an interpreter's words name a file or module to run, or ask for its version."""
    for word in rest:
        if word in PLAIN_OPTIONS:
            if word in ("-m", "--version", "-V"):
                return True
        else:
            return not word.startswith(("-", "/dev/", "/proc/"))
    return False
