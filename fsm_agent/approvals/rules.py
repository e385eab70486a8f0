"""Patterns of tool calls: what a person approves or forbids for more than one call.

=============================  ===============================================================================
``write_file``                 every call of this tool; ``*`` in the name matches anything
``write_file(src/**)``         calls whose paths all fit: ``*`` stays in one folder, ``**`` does not; links
                               are followed
``terminal(git status*)``      a shell command that fits
``terminal(@read-only)``       commands that only read, in the working directory, with ``|``, ``&&``, ``;``
``lookup({"city":"Oslo"})``    other tools by their arguments as sorted compact JSON
``delete(#9f86d08…)``          exactly this call, by the hash of its arguments
=============================  ===============================================================================

Allowing is narrow and forbidding wide. A pattern with wildcards is compared with the words of the command,
one blank between them and quoted only where they have to be. It allows one simple command, if all of it is
understood, and no option that makes it write elsewhere or run something, unless the pattern spells the
option; commands that only read may surround it when they are allowed too. It forbids a line in which any
command fits, behind ``sudo``, paths, quotes and assignments too. Shell text can be disguised in endless ways,
so a forbidden command is a rule for honest models, not a wall: what is not allowed needs approval.
"""

# A command that is not understood needs approval. tree-sitter's bash grammar parses a line, and only a short
# list of its nodes counts as understood. An editor grammar is lenient where a shell is not, so whatever lies
# between two nodes must also be blank to a shell. Everything else needs approval and is never remembered. For
# denials, its programs are still guessed: a guess may see too much, and allows nothing. A line with more than
# 1,000 brackets and pipes is split by separators alone, because ambiguous grammars can take quadratic time.
# Hard lines do not look into encodings, scripts, or interpreter code: an endless list only looks like a wall.

# Allow narrowly, forbid widely. A remembered approval covers this command or path unless the person names a
# wider pattern. A wildcard allows one simple command in the working directory, combined only with read-only
# ones. A denial looks at every place where a command may start. Children inherit rules, checks, and permanent
# answers, but no session approvals, and a debugger cannot approve for a child if no one may be asked.

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
import posixpath
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fsm_agent.approvals.programs import STATEFUL, VERSIONED, WRAPPERS, Command, Word, base_name, row_of
from fsm_agent.approvals.readers import ReaderFolder
from fsm_agent.approvals.shell import ShellReading, read
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.rows import compaction_chain

_QUOTED = re.compile(r"[\s\"'\\$`;&|<>()]")


def adds_nothing(command: Command, layer: int) -> bool:
    """Return whether the program at this start only runs the next one, as ``timeout`` does."""
    wrapper = WRAPPERS.get(command.words[command.starts[layer]].text)
    return wrapper is not None and wrapper.plain


def hides_options(command: Command) -> bool:
    """Return whether a word could hide an option from a program for which options matter."""
    row, _ = row_of(command.texts(command.starts[-1]))
    return not (row is not None and row.harmless) and any(word.may_be_option for word in command.words)


def only_reads(command: Command, folder: ReaderFolder) -> bool:
    """Return whether a program only reads, judging by its name and words, and only in the working directory.
    What the folder makes of it is checked by ``ReaderFolder.why_ask``."""
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
    """Return whether a redirection reads a file of the working directory. To bash ``/dev/tcp/…`` is a
    connection."""
    return word.kind == "exact" and not word.text.startswith("/dev/") and folder.is_inside(word.text)


def join_words(words: Sequence[Word]) -> str:
    """Join the words into one line, quoted only where necessary."""
    return " ".join(
        shlex.quote(word.text)
        if word.kind == "exact" and (not word.text or _QUOTED.search(word.text))
        else word.text
        for word in words
    )


_PATTERN = re.compile(r"(?P<tool>[A-Za-z0-9_.*-]{1,64})(?:\((?P<what>.+)\))?", re.DOTALL)
READ_ONLY = "@read-only"
"""In a pattern: every line of commands that only read."""
MAX_STARTS = 64
"""Words of a command at which a forbidden one is searched for."""
LONGEST = 500
"""Characters of a call that is remembered verbatim; a longer one is remembered by its hash."""
HARMLESS = frozenset({"timeout", "description"})
"""Arguments beside a command that do not change what it does."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as patterns see it: a ``command``, or ``paths`` (absolute, links followed), or neither.
    ``given``: the paths as written in the arguments, also those in lists."""

    tool: str
    arguments: Mapping[str, Any]
    command: str | None = None
    paths: tuple[str, ...] = ()
    plain: bool = True
    given: tuple[str, ...] = ()
    reading: ShellReading | None = None

    @classmethod
    def of(
        cls, tool: str, arguments: Mapping[str, Any], path_arguments: Sequence[str], workdir: str
    ) -> Asked:
        """Extract from a call what rules match. ``path_arguments``: names of the arguments that are paths."""
        lines = {name: value for name in COMMANDS if isinstance(value := arguments.get(name), str)}
        given = [arguments.get(name) for name in path_arguments]
        paths = tuple(
            os.path.realpath(os.path.join(workdir, path))
            for path in given
            if isinstance(path, str) and "\0" not in path
        )
        others = {
            name for name, value in arguments.items() if name not in lines and value not in (None, "", ".")
        }
        plain = others <= HARMLESS and len(lines) == 1  # of two lines, either may be the one that runs
        command = "\n".join(lines.values()) or None
        return cls(
            tool,
            arguments,
            command,
            paths if len(paths) == len(path_arguments) else (),
            plain,
            tuple(
                path
                for one in given
                for path in (one if isinstance(one, list | tuple) else [one])
                if isinstance(path, str)
            ),
            None if command is None else read(command, os.environ, workdir),
        )

    @property
    def rememberable(self) -> bool:
        """Return whether an approval may last: not for a command that is not understood or may hide an
        option."""
        return self.reading is None or (
            not self.reading.unread and not any(hides_options(one) for one in self.reading.commands)
        )

    @property
    def text(self) -> str:
        """Return the arguments as sorted compact JSON."""
        return json.dumps(
            dict(self.arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
        )

    @property
    def hash(self) -> str:
        """Return a pattern for exactly this call."""
        return "#" + hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()

    @property
    def exactly(self) -> str:
        """Return the pattern of this call and, for a tool that works on one path, of every call for that
        path."""
        if self.command is not None:
            what = glob.escape(self.command) if self.plain else self.hash
        elif len(self.paths) == 1:
            what = glob.escape(self.paths[0])
        else:
            what = glob.escape(self.text) if not self.paths else self.hash
        # a text that reads as a hash or as a set would match other calls
        mistakable = len(what) > LONGEST or what.startswith(("#", "@"))
        return f"{self.tool}({self.hash if mistakable else what})"


COMMANDS = ("command", "cmd")
"""Arguments that hold a shell command."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern."""

    text: str
    tool: str
    what: str | None

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Parse a pattern; raises ``ConfigError`` if it is malformed."""
        found = _PATTERN.fullmatch(text.strip())
        if found is None:
            raise ConfigError(
                "a pattern of calls cannot be read",
                text,
                "tool, tool(text) or tool(folder/**), with * for anything",
            )
        return cls(text.strip(), found["tool"], found["what"])

    @property
    def exact(self) -> bool:
        """Return whether the pattern matches only one call, one command or one path."""
        return self.what is not None and _literal_text(self.what) is not None

    def names(self, tool: str) -> bool:
        """Return whether the pattern is for this tool."""
        return fnmatch.fnmatchcase(tool, self.tool)

    def allows(self, call: Asked, workdir: str) -> bool:
        """Return whether this pattern alone allows the call."""
        return allows((self,), call, workdir)

    def stands_for(self, call: Asked, workdir: str) -> bool:
        """Return whether it matches exactly this call, or its folder or arguments."""
        if self.what is None or self.what == call.hash:
            return True
        if call.command is not None:
            return call.plain and call.command == _literal_text(self.what) and not self.what.startswith("@")
        if call.paths:
            return all(_path_fits(path, self.what, workdir) for path in call.paths)
        return fnmatch.fnmatchcase(call.text, self.what)

    def covers(self, command: Command) -> bool:
        """Return whether a simple command matches, with nothing in it that the pattern does not spell out."""
        if self.what is None or hides_options(command):
            return False
        if any(base_name(command.words[start].text) in STATEFUL for start in command.starts):
            return False
        named = set(self.what.split())
        for start in command.starts:
            row, rest = row_of(command.texts(start))
            if row is not None and not set(row.active(rest)) <= named:
                return False
        plain = 0
        while plain + 1 < len(command.starts) and adds_nothing(command, plain):
            plain += 1
        starts = command.starts[: plain + 1]
        return any(fnmatch.fnmatchcase(join_words(command.words[at:]), self.what) for at in starts)

    def forbids(self, call: Asked, workdir: str) -> bool:
        """Return whether denying this pattern denies the call. Wide: any command in the line counts."""
        if not self.names(call.tool):
            return False
        if self.what is None or self.what == call.hash:
            return True
        if call.command is not None:
            return any(fnmatch.fnmatchcase(line, self.what) for line in _lines(call))
        if call.paths:
            return any(_path_fits(path, self.what, workdir) for path in call.paths)
        return fnmatch.fnmatchcase(call.text, self.what)


def allows(patterns: Sequence[Pattern], call: Asked, workdir: str) -> bool:
    """Return whether these patterns together allow the call. Narrow: in a line of commands, all but one must
    only read, and that one must receive no input from another."""
    patterns = [one for one in patterns if one.names(call.tool)]
    if any(one.stands_for(call, workdir) for one in patterns):
        return True
    read_only = any(one.what == READ_ONLY for one in patterns)
    reading, folder = call.reading, ReaderFolder(workdir)
    if reading is None or not _is_simple(call, reading, folder):
        return False
    if any(folder.why_not_shown(word) for word in reading.reads):
        return False
    rest = [one for one in reading.commands if not one.carrier]
    if read_only:
        rest = [one for one in rest if not only_reads(one, folder) or folder.why_ask(one)]
    if not rest:
        return True
    fed = rest[0].piped or (
        any(one.piped for one in reading.commands) and any(one.carrier for one in reading.commands)
    )
    return len(rest) == 1 and not fed and any(one.covers(rest[0]) for one in patterns)


def why_not_read_only(call: Asked, workdir: str) -> str:
    """Return why a line of commands that only read needs approval although such lines are allowed: the
    reason is in the folder. Empty for a line that does more, or is allowed."""
    reading, folder = call.reading, ReaderFolder(workdir)
    if reading is None or not _is_simple(call, reading, folder):
        return ""
    commands = [one for one in reading.commands if not one.carrier]
    if not all(only_reads(one, folder) for one in commands):
        return ""
    reasons = (*map(folder.why_ask, commands), *map(folder.why_not_shown, reading.reads))
    return next((reason for reason in reasons if reason), "")


def _is_simple(call: Asked, reading: ShellReading, folder: ReaderFolder) -> bool:
    """Return whether all of a line is understood, and nothing in it writes a file or sets a variable."""
    plain = call.plain and not (reading.unread or reading.assigns or reading.writes)
    return plain and bool(reading.commands) and all(is_plain_file(word, folder) for word in reading.reads)


def _literal_text(text: str) -> str | None:
    """Return the only text that a pattern matches; ``None`` when it matches several."""
    plain = re.sub(r"\[([*?[])\]", r"\1", text)
    return plain if glob.escape(plain) == text else None


def _lines(call: Asked) -> Iterator[str]:
    """Yield the line and every suffix of it at which a command may begin, without the program's folder."""
    command = call.command or ""
    yield command
    yield " ".join(command.split())
    for one in call.reading.commands if call.reading is not None else ():
        texts = one.texts()
        for start in range(min(len(texts), MAX_STARTS)):
            line = " ".join(texts[start:])
            yield from (line, posixpath.basename(texts[start]) + line[len(texts[start]) :])


def _path_fits(path: str, pattern: str, workdir: str) -> bool:
    """Match a real path. Links are resolved in the pattern's part before the first wildcard. Case counts
    where it does for files."""
    whole = os.path.join(workdir, os.path.expanduser(pattern))
    head = re.split(r"[*?[]", whole, maxsplit=1)[0]
    folder = head[: head.rfind("/") + 1] or "/"
    if _literal_text(whole) is not None:
        return os.path.normcase(os.path.realpath(_literal_text(whole) or "")) == os.path.normcase(path)
    real = os.path.join(os.path.realpath(folder), os.path.normpath(whole[len(folder) :]))
    return re.fullmatch(_pattern_regex(os.path.normcase(real)), os.path.normcase(path), re.DOTALL) is not None


def _pattern_regex(pattern: str) -> str:
    """Translate to a regular expression: ``**`` matches anything, ``*`` and ``?`` within one folder."""
    parts = re.split(r"(\*\*/?|\*|\?|\[[*?[]\])", pattern)
    known = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        known.get(part) or re.escape(part[1] if re.fullmatch(r"\[[*?[]\]", part) else part) for part in parts
    )


# Permanent and session-wide permissions and denials, stored in a home as patterns.
#
# ``fsm-agent approvals list`` shows them and ``approvals remove`` removes one; a running agent reads them
# at each call. An answer for a session holds in it and in the sessions that continue it after a compaction,
# also in another process; not in its forks, and only in the working directory in which it was given.


Verdict = Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class Grant:
    """A stored verdict. ``at``: seconds since the epoch. ``session`` and ``workdir`` are empty for a
    permanent one."""

    pattern: Pattern
    verdict: Verdict
    at: float
    session: str = ""
    workdir: str = ""


class Grants:
    """The stored answers. Raises ``StoreError`` when the store cannot be used. ``database`` is called on
    first use."""

    def __init__(self, database: Callable[[], Database], now: Callable[[], float] = time.time) -> None:
        self._database, self._now = database, now

    def all(self) -> list[Grant]:
        """Return the permanent ones, oldest first."""
        with self._database().reading() as c:
            rows = c.execute(
                "SELECT pattern, verdict, at FROM grants WHERE scope = 'always' ORDER BY at, pattern"
            ).fetchall()
        return [Grant(Pattern.of(pattern), verdict, at) for pattern, verdict, at in rows]

    def of_session(self, session: str, workdir: str) -> list[Grant]:
        """Return those for this session and directory, oldest first."""
        with self._database().reading() as c:
            line = json.dumps(compaction_chain(c, session))
        return self._of_sessions(
            "SELECT pattern, verdict, at, session, workdir FROM session_grants"
            " WHERE session IN (SELECT value FROM json_each(?)) AND workdir = ? ORDER BY at, pattern",
            (line, workdir),
        )

    def of_sessions(self) -> list[Grant]:
        """Return those of all sessions, oldest first."""
        return self._of_sessions(
            "SELECT pattern, verdict, at, session, workdir FROM session_grants ORDER BY at, pattern", ()
        )

    def _of_sessions(self, query: str, values: tuple[str, ...]) -> list[Grant]:
        with self._database().reading() as c:
            return [
                Grant(Pattern.of(pattern), *rest) for pattern, *rest in c.execute(query, values).fetchall()
            ]

    def add(self, pattern: str, verdict: Verdict) -> None:
        """Store a permanent verdict, replacing an earlier one on the same pattern."""
        read = Pattern.of(pattern)
        values = (read.text, read.tool, verdict, self._now())
        self._database().write(
            lambda c: (
                c.execute(
                    "INSERT OR REPLACE INTO grants (pattern, tool, verdict, scope, at) VALUES (?, ?, ?,"
                    " 'always', ?)",
                    values,
                )
                and None
            )
        )

    def add_for(self, session: str, workdir: str, pattern: str, verdict: Verdict) -> None:
        """Store a verdict for a session and this directory."""
        values = (session, Pattern.of(pattern).text, verdict, workdir, self._now())
        self._database().write(
            lambda c: (
                c.execute("INSERT OR REPLACE INTO session_grants VALUES (?, ?, ?, ?, ?)", values) and None
            )
        )

    def remove(self, pattern: str, session: str = "") -> None:
        """Remove a verdict everywhere, or only that of ``session``. Raises ``ConfigError`` if there is
        none."""
        wanted = pattern.strip()

        def remove(c: SqlConnection) -> int:
            if session:
                return c.execute(
                    "DELETE FROM session_grants WHERE pattern = ? AND session = ?", (wanted, session)
                ).rowcount
            found = c.execute("DELETE FROM grants WHERE pattern = ?", (wanted,)).rowcount
            return found + c.execute("DELETE FROM session_grants WHERE pattern = ?", (wanted,)).rowcount

        if not self._database().write(remove):
            there = self.of_sessions() if session else [*self.all(), *self.of_sessions()]
            known = [grant.pattern.text for grant in there if not session or grant.session == session]
            raise ConfigError(
                "no such approval", pattern, ", ".join(dict.fromkeys(known[:10])) or "nothing is remembered"
            )
