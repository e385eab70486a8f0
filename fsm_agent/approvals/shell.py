"""Reading a shell's command line by the grammar of bash: what it runs, with which words. Pure.

Whatever the text leaves open is left open: a construct that is not understood is named in ``ShellReading.unread``,
and such a line is asked about and never remembered. What it runs is guessed all the same, for rules that
forbid: a guess may see a command where there is none, and must not be used to allow one."""

from __future__ import annotations

import codecs
import functools
import itertools
import posixpath
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fsm_agent.approvals.programs import (
    INTERPRETERS,
    ONLY_WRITE,
    OPAQUE,
    PLAIN_OPTIONS,
    READ_SHELLS,
    RESERVED,
    RUN_BY_OPTION,
    RUN_VARIABLES,
    RUNNERS,
    SHELLS,
    WRAPPERS,
    base_name,
    names,
    row_of,
)

if TYPE_CHECKING:
    from tree_sitter import Language, Node

MAX_COMMAND = 128 * 1024
"""Bytes; Linux starts no shell with a longer line."""
MAX_OPENINGS = 1_000
"""Brackets, pipes and here-documents of a line; with more of them the parser's time grows faster than the
text."""
MAX_DEPTH = 60
"""Levels of the tree."""
MAX_WRAPPERS = 8
"""Programs in a row that each run the next, as in ``sudo nice timeout 5 ls``."""
MAX_VALUE = 4_096
"""Characters of a variable that are followed."""
PARSE_SECONDS = 2.0
"""Of the processor, should another shape slow the parser down."""
UNKNOWN = "\0"
"""Stands in a guess for what the text does not say."""

_BLANK = re.compile(rb"[ \t]+(?:\\\n[ \t]*)*")
_SPACE = re.compile(rb"(?:[ \t\n]|(?<=[ \t\n])\\\n)*")
_OPERATORS = frozenset(("(", ")", "{", "}", ";", "&", "&&", "||", "|", "\n", "!", "`", "$("))
_LITERALS = frozenset(("==", "=~", "$"))
"""Nodes without a name that are words of a command."""
_STATEMENTS = names(
    "command pipeline list redirected_statement subshell compound_statement negated_command test_command"
    " variable_assignment variable_assignments declaration_command unset_command if_statement while_statement"
    " for_statement c_style_for_statement case_statement function_definition heredoc_redirect"
)
_SUBSTITUTIONS = frozenset(("command_substitution", "process_substitution"))
_LEAVES = frozenset(("word", "number", "test_operator", "variable_name", "special_variable_name", *_LITERALS))
_ACTIVE = re.compile(r"[\s|&;()<>\"'`$]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_IN_QUOTES = re.compile(r"\\([$`\"\\\n])")
_LIVE_IN_QUOTES = re.compile(r"[`\"]|\$(?![\s|)/.,:;\\]|$)")
_BRACES = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_SEPARATOR = re.compile(r"[;&|()\n]+")
_DESCRIPTOR = re.compile(r"\d+-?|-")


@dataclass(frozen=True, slots=True)
class Word:
    """What the shell makes of a word. ``exact``: this text. ``names``: the names of files that ``text`` fits,
    as ``*.py`` or ``~/x``. ``open``: the text does not say; ``text`` is a guess."""

    text: str
    kind: Literal["exact", "names", "open"] = "exact"

    @property
    def may_be_option(self) -> bool:
        """Could an option come out of it that nobody sees in the text?"""
        return self.kind == "open" or (self.kind == "names" and self.text[:1] in "*?[-")


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


@dataclass(frozen=True, slots=True)
class ShellReading:
    """``commands``: in their order, those inside others too. ``writes`` and ``reads``: files of redirections
    other than ``/dev/null``. ``assigns``: it sets variables. ``unread``: what was not understood, empty when
    everything was."""

    commands: tuple[Command, ...]
    writes: tuple[Word, ...]
    reads: tuple[Word, ...]
    assigns: bool
    unread: str


def read(text: str, environ: Mapping[str, str], directory: str = "") -> ShellReading:
    """Read a command line. ``environ``: the variables that it will see; ``directory``: where it will run,
    empty when that is not known. Never raises; takes time in proportion to the text."""
    reader = _Reader(environ, directory, 8 * len(text) + 10_000)
    if len(text.encode("utf-8", "replace")) < MAX_COMMAND:
        reader.line(text)
    else:
        reader.unread = "a line that no shell takes"
    return ShellReading(
        tuple(reader.commands), tuple(reader.writes), tuple(reader.reads), reader.assigns, reader.unread
    )


class _Reader:
    def __init__(self, environ: Mapping[str, str], directory: str, budget: int) -> None:
        self.commands: list[Command] = []
        self.writes: list[Word] = []
        self.reads: list[Word] = []
        self.assigns, self.unread = False, ""
        self._environ, self._directory, self._budget = environ, directory, budget
        self._variables: dict[str, str] = {}
        self._sourced, self._data, self._depth = False, b"", 0

    def line(self, text: str) -> None:
        """A whole line, also one that another one carries."""
        self._budget -= len(text)
        if self._budget < 0 or self._depth > MAX_DEPTH:
            return self._miss("deep nesting")
        data = text.encode("utf-8", "replace")
        if "\0" in text or "\ufffd" in text or data.decode() != text:
            self._miss("a character that no shell takes")
        root = _parsed(data)
        if root is None or root.has_error:
            self._miss("syntax")
            self._guessed(text)
        if root is not None:
            outer, self._data = self._data, data
            if not _SPACE.fullmatch(data[: root.start_byte]) or not _SPACE.fullmatch(data[root.end_byte :]):
                self._miss("a blank")
            self._statement(root)
            self._data = outer
        if self.unread and "\\\n" in text:  # perhaps in the middle of a word
            self._guessed(text.replace("\\\n", ""))
        return None

    def _miss(self, what: str) -> None:
        self.unread = self.unread or what

    def _guessed(self, text: str) -> None:
        """Commands by words and separators alone."""
        words: list[Word] = []
        for word in [*_rough_words(text), ";"]:
            if not _SEPARATOR.fullmatch(word):
                words += [Word(one, "open") for one in _spelled_out(self._filled(word))]
            elif words:
                self._run(words, word.startswith("|"))
                words = []

    def _filled(self, word: str) -> str:
        return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda match: self._value(match[1]), word)

    # Statements

    def _statement(self, node: Node, piped: bool = False) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._miss("deep nesting")
            if self._budget > 0:
                self._budget -= node.end_byte - node.start_byte
                self._guessed(self._text(node))
        else:
            self._one(node, piped)
        self._depth -= 1

    def _one(self, node: Node, piped: bool) -> None:
        place = self._directory
        match node.type:
            case "command":
                self._command(node, piped)
            case "redirected_statement":
                self._redirected(node, piped)
            case "list":
                later: list[Node] = []
                first = node
                while first.type == "list":  # it leans to the left, as deep as it is long
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
        """The children with a meaning, after a look at what lies between them: the grammar takes more for a
        blank than a shell does."""
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
            elif child.is_named or (child.type in _LITERALS and blanks is _BLANK):
                found += [child] if number >= first else []
            elif child.type not in _OPERATORS and number >= first:
                self._miss(child.type)
        if not _SPACE.fullmatch(self._data[at : node.end_byte]):
            self._miss("a blank")
        return found

    def _inside(self, node: Node) -> None:
        """What is run somewhere inside something that is not understood."""
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
        said = " ".join(word.text for value in values for word in self._words(value))
        known = self._text(name)
        before = self._value(known) if node.children[1].type == "+=" else ""
        if RUN_VARIABLES.fullmatch(known):
            self._miss(f"what {known} is for")
            self._lines_in([said])
        return self._set(known, before + said)

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

    def _redirected(self, node: Node, piped: bool) -> None:
        body: Node | None = None
        more: list[Word] = []
        for part in self._parts(node, _BLANK):
            if part.type == "file_redirect":
                more += self._redirect(part)  # the words behind its file are the command's
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
        words = [word for one in node.children_by_field_name("destination") for word in self._words(one)]
        operator = next((one.type for one in node.children if not one.is_named), "")
        if operator.endswith("-") or not words:
            return words
        target, *rest = words
        if operator.endswith("&") and _DESCRIPTOR.fullmatch(target.text):
            return rest
        if target != Word("/dev/null"):
            (self.reads if operator in ("<", "<&") else self.writes).append(target)
        return rest

    # Words

    def _text(self, node: Node) -> str:
        return self._data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _words(self, node: Node) -> list[Word]:
        pieces = list(self._pieces(node))
        text = "".join(piece for piece, _ in pieces)
        bare = "".join(piece if how == "bare" else "Q" * len(piece) for piece, how in pieces)
        ways = {how for _, how in pieces}
        if "{" in bare and "}" in bare and ("," in bare or ".." in bare):
            self._miss("braces")
            return [Word(one, "open") for one in _spelled_out(text)]
        if "split" in ways:
            return [Word(one, "open") for one in text.split()]
        if "value" in ways or re.search("[=:]~", bare):
            return [Word(text, "open")]
        return [Word(text, "names" if bare[:1] == "~" or re.search(r"[*?\[]", bare) else "exact")]

    def _pieces(self, node: Node, quoted: bool = False) -> Iterator[tuple[str, str]]:
        """(text, how): ``bare`` and ``quoted`` stand there, ``split`` and ``value`` are guesses, which the
        shell splits into words or not."""
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
                    if child.start_byte != at:
                        self._miss("a blank")
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
                yield _decoded(self._text(node)[2:-1]), "quoted"
            case other:
                self._miss(other.replace("_", " "))
                self._inside(node)
                self._statement(node) if other == "process_substitution" else None
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
        """The best guess at what a variable holds; one that is nowhere set is empty, as it is for the
        shell."""
        self._budget -= 1
        if name == "PWD":
            value = self._directory or UNKNOWN
        elif name in self._variables:
            value = self._variables[name]
        elif name in ("HOME", "IFS"):
            value = self._environ.get("HOME", "~") if name == "HOME" else " "
        elif name in ("?", "$", "!", "#", "0", "-", "_", "OLDPWD", "RANDOM"):
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
        if len(signs) == 3 and signs[1] in (":-", "-", ":=", "="):
            other = " ".join(word.text for one in node.named_children[1:] for word in self._words(one))
            return value or other
        self._inside(node)
        return UNKNOWN

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

    # Programs

    def _run(self, words: Sequence[Word], piped: bool) -> None:
        if not words:
            return None
        self._budget -= sum(len(word.text) + 1 for word in words)
        if self._budget < 0 or self._depth >= MAX_DEPTH:
            return self._miss("deep nesting")
        if words[0].kind != "exact" or words[0].text in RESERVED:
            self._miss("a program that the text does not name")
        starts = self._starts(words)
        position = len(self.commands)
        self.commands.append(command := Command(tuple(words), starts, self._directory, piped))
        self._depth += 1
        if [self._program(words[start:]) for start in starts][-1]:
            self.commands[position] = replace(command, carrier=True)
        self._depth -= 1
        return None

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
            if any(not word.startswith(ONLY_WRITE) for word in active):
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


@functools.cache
def _language() -> Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def _parsed(data: bytes) -> Node | None:
    """The tree of a line; ``None`` when it has so many openings that reading it would take too long."""
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
    except ValueError:  # a quote without its partner
        return re.sub(r"[\"']", " ", _SEPARATOR.sub(r" ; ", text)).split()


def _spelled_out(word: str) -> list[str]:
    """The words that bash makes of ``{a,b}``, at most 64."""
    words = [word]
    while len(word) < 1_000 and len(words) < 64 and (match := _BRACES.search(words[0])) is not None:
        words = [
            one[: found.start()] + part + one[found.end() :]
            for one in words
            if (found := _BRACES.search(one))
            for part in match[1].split(",")
        ]
    return words


def _decoded(text: str) -> str:
    try:
        return codecs.decode(text.replace("\\e", "\x1b"), "unicode_escape")
    except ValueError:
        return text
