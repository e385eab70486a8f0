"""Reads a shell command line with the grammar of bash: which programs it runs, with which words. Pure.

A construct that is not understood is named in ``ShellReading.unread``; such a line needs approval and is
never remembered. Its commands are guessed all the same, for rules that forbid: a guess may find a command
that the line does not run, and must not be used to allow one."""

from __future__ import annotations

import functools
import itertools
import os
import posixpath
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from fsm_agent.approvals.programs import (
    LITERALS,
    MAX_DEPTH,
    MAX_VALUE,
    UNKNOWN,
    Command,
    ProgramReader,
    Word,
    base_name,
    expand_braces,
    is_run_variable,
    names,
)

if TYPE_CHECKING:
    from tree_sitter import Language, Node


MAX_COMMAND = 128 * 1024
"""Bytes; Linux starts no shell with a longer line."""
MAX_OPENINGS = 1_000
"""Brackets, pipes and here-documents in a line; with more, the parser's time grows faster than the text."""
PARSE_SECONDS = 2.0
"""CPU time limit, in case another shape slows down the parser."""

_BLANK = re.compile(rb"[ \t]+(?:\\\n[ \t]*)*")
_SPACE = re.compile(rb"(?:[ \t\n]|(?<=[ \t\n])\\\n)*")
_OPERATORS = frozenset(("(", ")", "{", "}", ";", "&", "&&", "||", "|", "\n", "!", "`", "$("))
_STATEMENTS = names(
    "command pipeline list redirected_statement subshell compound_statement negated_command test_command"
    " variable_assignment variable_assignments declaration_command unset_command if_statement while_statement"
    " for_statement c_style_for_statement case_statement function_definition heredoc_redirect"
)
_SUBSTITUTIONS = frozenset(("command_substitution", "process_substitution"))
_SEPARATOR = re.compile(r"[;&|()\n]+")
_DESCRIPTOR = re.compile(r"\d+-?|-")


@dataclass(frozen=True, slots=True)
class ShellReading:
    """``commands``: in order, nested ones included. ``writes`` and ``reads``: files of redirections other
    than ``/dev/null``. ``assigns``: the line sets variables. ``unread``: what was not understood, empty if
    all was."""

    commands: tuple[Command, ...]
    writes: tuple[Word, ...]
    reads: tuple[Word, ...]
    assigns: bool
    unread: str


def read(text: str, environ: Mapping[str, str], directory: str = "") -> ShellReading:
    """Read a command line. ``environ``: the variables it will see; ``directory``: where it will run, empty
    if unknown. Never raises; takes time in proportion to the text."""
    reader = _Reader(environ, directory, 8 * len(text) + 10_000)
    if len(text.encode("utf-8", "replace")) < MAX_COMMAND:
        reader.line(text)
    else:
        reader.unread = "a line that no shell takes"
    return ShellReading(
        tuple(reader.commands), tuple(reader.writes), tuple(reader.reads), reader.assigns, reader.unread
    )


class _Reader(ProgramReader):
    def __init__(self, environ: Mapping[str, str], directory: str, budget: int) -> None:
        super().__init__(environ, directory, budget)
        self.writes: list[Word] = []
        self.reads: list[Word] = []

    def line(self, text: str) -> None:
        """Read a whole line, also one nested in another."""
        self._budget -= len(text)
        if self._budget < 0 or self._depth > MAX_DEPTH:
            return self._miss("deep nesting")
        data = text.encode("utf-8", "replace")
        if "\0" in text or "\ufffd" in text or data.decode() != text:
            self._miss("a character that no shell takes")
        root = _parse(data)
        if root is None or root.has_error:
            self._miss("syntax")
            self._guess_commands(text)
        if root is not None:
            outer, self._data = self._data, data
            if not _SPACE.fullmatch(data[: root.start_byte]) or not _SPACE.fullmatch(data[root.end_byte :]):
                self._miss("a blank")
            self._statement(root)
            self._data = outer
        if self.unread and "\\\n" in text:  # perhaps in the middle of a word
            self._guess_commands(text.replace("\\\n", ""))
        return None

    def _guess_commands(self, text: str) -> None:
        """Guess commands from words and separators alone."""
        words: list[Word] = []
        for word in [*_rough_words(text), ";"]:
            if not _SEPARATOR.fullmatch(word):
                word = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda match: self._value(match[1]), word)
                words += [Word(one, "open") for one in expand_braces(word)]
            elif words:
                self._run(words, word.startswith("|"))
                words = []

    def _statement(self, node: Node, piped: bool = False) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._miss("deep nesting")
            if self._budget > 0:
                self._budget -= node.end_byte - node.start_byte
                self._guess_commands(self._text(node))
        else:
            self._one(node, piped)
        self._depth -= 1

    def _one(self, node: Node, piped: bool) -> None:
        place = self._directory
        match node.type:
            case "command":
                self._command(node, piped)
            case "redirected_statement":
                self._read_redirect(node, piped)
            case "list":
                later: list[Node] = []
                first = node
                while first.type == "list":  # left-recursive: as deep as the line is long
                    first, *rest = self._parts(first)
                    later += reversed(rest)
                for part in (first, *reversed(later)):
                    self._statement(part, piped)
            case "pipeline":
                for number, part in enumerate(self._parts(node)):
                    self._statement(part, piped or number > 0)
                self._directory = place
            case "program" | "compound_statement" | "negated_command" | "variable_assignments":
                for part in self._parts(node):
                    self._statement(part, piped)
            case "subshell" | "command_substitution":
                for part in self._parts(node):
                    self._statement(part, piped)
                self._directory = place
            case "variable_assignment":
                self._assign(node)
            case "declaration_command" if self._text(node.children[0]) == "export":
                for part in self._parts(node, _BLANK, first=1):
                    if part.type == "variable_assignment":
                        self._assign(part)
                    elif part.type != "variable_name":
                        self._miss("export")
            case other:
                self._miss(other.replace("_", " "))
                self._inside(node)

    def _parts(self, node: Node, blanks: re.Pattern[bytes] = _SPACE, first: int = 0) -> list[Node]:
        """Return the children that have a meaning. Checks the text between them, because the grammar
        accepts more as blanks than a shell does."""
        found: list[Node] = []
        at = node.start_byte
        for number, child in enumerate(node.children):
            start = child.start_byte
            gap, at = self._data[at:start], child.end_byte
            redirects = child.type.endswith("_redirect") and not self._data[start : start + 1].isdigit()
            if number and not blanks.fullmatch(gap) and not (redirects and not gap):
                self._miss("a blank")
            if child.type == "comment":
                if start and self._data[start - 1 : start] not in b" \t\n;&|()":
                    self._miss("a comment")
            elif child.is_named or (child.type in LITERALS and blanks is _BLANK):
                found += [child] if number >= first else []
            elif child.type not in _OPERATORS and number >= first:
                self._miss(child.type)
        if not _SPACE.fullmatch(self._data[at : node.end_byte]):
            self._miss("a blank")
        return found

    def _inside(self, node: Node) -> None:
        """Find commands inside a construct that is not understood."""
        self._depth += 1
        if node.type == "for_statement" and (name := node.child_by_field_name("variable")) is not None:
            values = node.children_by_field_name("value")
            self._set(self._text(name), " ".join(w.text for one in values for w in self._words(one)))
        for child in node.named_children if self._depth <= MAX_DEPTH else ():
            if child.type in _STATEMENTS or child.type in _SUBSTITUTIONS:
                self._statement(child)
            elif child.type == "ansi_c_string" or child.named_child_count:
                self._inside(child)
        self._depth -= 1

    def _assign(self, node: Node) -> None:
        self.assigns = True
        name, *values = node.named_children
        if name.type != "variable_name" or any(value.type == "array" for value in values):
            self._miss("an array")
            return self._inside(node)
        assigned = " ".join(word.text for value in values for word in self._words(value))
        known = self._text(name)
        before = self._value(known) if node.children[1].type == "+=" else ""
        if is_run_variable(known):
            self._miss(f"what {known} is for")
            self._lines_in([assigned])
        return self._set(known, before + assigned)

    def _set(self, name: str, value: str) -> None:
        self._variables[name] = value if len(value) <= MAX_VALUE else UNKNOWN

    def _command(self, node: Node, piped: bool, more: Sequence[Word] = ()) -> None:
        words: list[Word] = []
        for part in self._parts(node, _BLANK):
            match part.type:
                case "variable_assignment":
                    self._assign(part)
                case "file_redirect":
                    words += self._redirect(part)
                case "command_name":
                    words += self._words(part.children[0])
                case kind if kind in _STATEMENTS or kind.endswith("_redirect"):
                    self._miss(kind.replace("_", " "))
                    self._inside(part)
                case _:
                    words += self._words(part)
        self._run([*words, *more], piped)

    def _read_redirect(self, node: Node, piped: bool) -> None:
        body: Node | None = None
        more: list[Word] = []
        for part in self._parts(node, _BLANK):
            if part.type == "file_redirect":
                more += self._redirect(part)  # the words after its file belong to the command
            elif part.type.endswith("_redirect"):
                self._miss(part.type.replace("_", " "))
                self._inside(part)
            else:
                body = part
        if body is not None and body.type == "command":
            return self._command(body, piped, more)
        if body is not None:
            self._statement(body, piped)
        if more:
            self._miss("words behind a redirection")
            self._run(more, piped)
        return None

    def _redirect(self, node: Node) -> list[Word]:
        targets = node.children_by_field_name("destination")
        for one, other in itertools.pairwise(node.children):
            gap = self._data[one.end_byte : other.start_byte]
            if not _BLANK.fullmatch(gap) and (gap or one in targets):
                self._miss("a blank")
        words = [word for one in targets for word in self._words(one)]
        operator = next((one.type for one in node.children if not one.is_named), "")
        if operator.endswith("-") or not words:
            return words
        target, *rest = words
        if operator.endswith("&") and _DESCRIPTOR.fullmatch(target.text):
            return rest
        if target != Word("/dev/null"):
            (self.reads if operator in ("<", "<&") else self.writes).append(target)
        return rest

    def _substitution(self, node: Node) -> str:
        if node.children[0].type != "$(":
            self._miss("a backtick")
        before = len(self.commands)
        self._statement(node)
        if len(self.commands) == before + 1:
            name, *rest = self.commands[before].texts()
            if name == "pwd":
                return self._directory or UNKNOWN
            if name in ("echo", "printf") and not any("%" in word or word[:1] == "-" for word in rest):
                return " ".join(rest)
        return UNKNOWN


@functools.cache
def _language() -> Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def _parse(data: bytes) -> Node | None:
    """Parse a line; return ``None`` if its openings would make parsing too slow."""
    from tree_sitter import Parser

    if sum(data.count(sign) for sign in (b"(", b"{", b"|", b"<<")) > MAX_OPENINGS:
        return None
    until = time.thread_time() + PARSE_SECONDS
    try:
        tree = Parser(_language()).parse(
            lambda at, _: data[at : at + 65_536], progress_callback=lambda *_: time.thread_time() > until
        )
    except ValueError:  # stopped
        return None
    return tree.root_node


def _rough_words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|()<>`")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:  # an unmatched quote
        return re.sub(r"[\"']", " ", _SEPARATOR.sub(r" ; ", text)).split()


# ----------------------------------------------------------------------------------------------------
# Hard lines: commands that cannot be approved, because they would destroy the machine or the home
# directory, or would wait for a password that cannot be entered. Pure.
#
# This is a seat belt, not a wall: it prevents blunders that a tired person would approve. It looks through
# quotes, variables, wrappers such as ``sudo``, and nested shells. A program that hides what it does gets
# through; a person decides on it as on every other command. A program's name alone never triggers a
# hard line: its operand must be a system folder, the home directory or a disk.


_FORK_BOMB = re.compile(r"([\w:.]{1,40})\(\)\{[^}]{0,200}?\1\|\1&")
_GLOB = re.compile(r"[.\[\]!^,{}]*[*?][*?.\[\]!^,{}]*")
_DISK = re.compile(r"/dev/(?:r?disk|sd|hd|vd|xvd|nvme|mmcblk|md|dm-|mapper/)\w*")
_SYSTEM = names(
    "/ /bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /sbin /sys /usr /var /Users /System /Library"
    " /Applications"
)
_NEEDED = frozenset(("/etc/passwd", "/etc/shadow", "/etc/sudoers", "/etc/fstab"))
_OPENED = re.compile(r"[0-7]?777|0+|[augo]*[+=]rwx|[augo]*[-=](?:rwx)?")
_STOPPING = frozenset(("shutdown", "reboot", "halt", "poweroff"))
_IDLE_TESTS = frozenset(("-type", "-mindepth", "-maxdepth"))
_NAME_TESTS = frozenset(("-name", "-iname", "-path", "-regex", "-wholename"))
_FIND_WORDS = frozenset(
    ("-delete", "-exec", "-execdir", "-depth", "-xdev", "-mount", "-rf", "-r", "-f", "-fr")
)
_KNOWN = ("rm", "dd", "mv", "find", "chmod", "chown", "mkfs", "shred", *_STOPPING)

_DELETES = "it would delete the system or the home directory"
_OPENS = "it would change the permissions of the whole system"
_WRITES = "writing to a disk device destroys what is on it"
_STOPS = "it would stop the machine"
_NEEDS = "it would overwrite a file that the system cannot do without"


def hard_line(command: str, *, environ: Mapping[str, str] | None = None, directory: str = "") -> str | None:
    """Return why this shell command never runs, even with approval; ``None`` when a person may decide.

    ``environ``: the variables it will see, by default those of this process; ``directory``: where it will
    run."""
    if len(command.encode("utf-8", "replace")) >= MAX_COMMAND:
        return "the command is too long to be run; a script belongs in a file"
    if _FORK_BOMB.search(re.sub(r"\s+", "", command)):
        return "a fork bomb stops the machine"
    environ = os.environ if environ is None else environ
    reading = read(command, environ, directory)
    reasons = (
        *(_overwrites(target) for target in reading.writes),
        *(_destroys(one, start, environ.get("HOME", "")) for one in reading.commands for start in one.starts),
    )
    return next((reason for reason in reasons if reason), None)


def _overwrites(target: Word) -> str | None:
    if is_disk(target.text):
        return _WRITES
    if target.text in ("/proc/sysrq-trigger", "/proc/sys/kernel/sysrq"):
        return _STOPS
    return _NEEDS if target.text in _NEEDED else None


def _above_globs(word: str) -> str:
    """Reduce ``/etc/*/?`` to ``/etc/``."""
    parts = word.rstrip("/").split("/")
    kept = len(parts)
    while kept > 1 and _GLOB.fullmatch(parts[kept - 1]):
        kept -= 1
    return word if kept == len(parts) else "/".join(parts[:kept]) + "/"


def is_disk(word: str) -> bool:
    """Return whether a word of a command names a whole disk or partition."""
    return _DISK.match(word) is not None


@dataclass(frozen=True, slots=True)
class PathPlace:
    """Where a command runs, as far as known."""

    home: str
    directory: str

    def is_vital(self, word: str) -> bool:
        """Return whether this path, or everything in it, is vital to the machine or the user."""
        if re.fullmatch(r"~[\w.-]*/*", _above_globs(word)):
            return True  # a user's home directory
        if UNKNOWN in word or word.startswith(("~", "-")):
            return False
        if not word.startswith("/"):
            here = word.removeprefix("./") in ("*", ".", "")
            if not self.directory or not (here or ".." in word.split("/")):
                return False
            word = self.directory if here else posixpath.join(self.directory, word)
            if word.startswith("~"):
                return self.is_vital(posixpath.normpath(word))
        path = "/" + posixpath.normpath(_above_globs(word)).lstrip("/")
        if path in _SYSTEM or (self.home and path == posixpath.normpath(self.home)):
            return True
        pattern = path.count("/") == 1 and any(sign in path for sign in "*?[")
        return pattern and any(fnmatchcase(one, path) for one in _SYSTEM - {"/"})


def _destroys(command: Command, start: int, home: str) -> str | None:
    """Return the harm done by the program that begins at ``start``, if any."""
    name, rest = base_name(command.words[start].text), command.texts(start + 1)
    if any(sign in name for sign in "*?["):
        name = next((known for known in _KNOWN if fnmatchcase(known, name)), name)
    place = PathPlace(home, command.directory)
    vital = any(map(place.is_vital, rest)) or "--no-preserve-root" in rest
    match name.partition(".")[0]:
        case "rm" if vital and _has(rest, "rR", "recursive"):
            return _DELETES
        case "find" if vital and _finds_all(rest):
            return _DELETES
        case "rsync" if any(word.startswith("--del") for word in rest) and place.is_vital(rest[-1]):
            return _DELETES
        case "mv" if any(map(place.is_vital, rest[:-1])):
            return _DELETES
        case "tar" if vital and "--remove-files" in rest:
            return _DELETES
        case "chown" if vital and _has(rest, "R", "recursive"):
            return _OPENS
        case "chmod" if vital and _has(rest, "R", "recursive") and any(map(_OPENED.fullmatch, rest)):
            return _OPENS
        case "dd" if any(word.startswith("of=") and is_disk(word[3:]) for word in rest):
            return _WRITES
        case "tee" | "shred" | "mkfs" | "mkswap" | "wipefs" | "blkdiscard" if any(map(is_disk, rest)):
            return _WRITES
        case "cp" | "mv" | "ln" | "install" | "truncate" if rest and (
            is_disk(rest[-1]) or rest[-1] in _NEEDED
        ):
            return _WRITES if is_disk(rest[-1]) else _NEEDS
        case "shutdown" | "reboot" | "halt" | "poweroff" if not {"--help", "--version", "-c", "-k"} & set(
            rest
        ):
            return _STOPS
        case "init" | "telinit" if rest[:1] in (["0"], ["6"]):
            return _STOPS
        case "systemctl" if _STOPPING & set(rest[:2]):
            return _STOPS
        case "kill" if "-1" in rest[1:]:
            return "it would kill every process"
        case "killall5":
            return "it would kill every process"
        case "pkill" | "killall" if "root" in rest and {"-u", "-U", "--euid", "--uid", "--user"} & set(rest):
            return "it would kill the processes of the system"
        case "sudo" | "doas" if _has(_own_options(rest), "S", "stdin"):
            return "sudo would read a password from standard input"
    return None


def _has(words: Sequence[str], letters: str, long: str) -> bool:
    """Return whether the words contain a short option with one of these letters, or this long option, perhaps
    abbreviated."""
    return any(
        len(word) > 3 and f"--{long}".startswith(word)
        if word.startswith("--")
        else word[:1] == "-" and any(letter in word for letter in letters)
        for word in words
    )


def _own_options(rest: Sequence[str]) -> list[str]:
    """Return the options of sudo itself, up to the command."""
    own, words = list[str](), iter(rest)
    for word in words:
        if not word.startswith("-"):
            break
        own.append(word)
        if word in ("-u", "-g", "-h", "-p", "-C", "-T", "-U", "-D", "-R", "-r", "-t"):
            next(words, None)
    return own


def _finds_all(rest: Sequence[str]) -> bool:
    """Return whether ``find`` deletes without a test that could exclude anything."""
    words, kept = iter(rest), list[str]()
    for word in words:
        value = next(words, "") if word in _IDLE_TESTS | _NAME_TESTS else ""
        kept += [] if word in _IDLE_TESTS or (word in _NAME_TESTS and not value.strip("*?.")) else [word]
    deletes = any(word == "-delete" or base_name(word) in ("rm", "shred", "unlink") for word in kept)
    return deletes and all(word in _FIND_WORDS for word in kept if word.startswith("-"))
