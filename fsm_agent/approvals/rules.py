"""Patterns of tool calls: what a person approves or forbids for more than one call.

=============================  ===============================================================================
``write_file``                 every call of this tool; ``*`` in the name stands for anything
``write_file(src/**)``         calls whose paths all fit: ``*`` stays in one folder, ``**`` does not; links
                               are followed
``terminal(git status*)``      shell commands that fit
``lookup({"city":"Oslo"})``    other tools by their arguments as sorted compact JSON
``delete(#9f86d08…)``          exactly this call, by the hash of its arguments
=============================  ===============================================================================

Allowing is narrow and forbidding wide. A pattern with wildcards allows only a command that is one simple
command, without any character that could begin another one, and only in the working directory; it forbids a
line in which any command fits, behind ``sudo``, paths and assignments too. Text of a shell can be disguised
without end, so a forbidden command is a rule for honest models and no wall: what is not allowed is asked for.
(Why: decision 43.)
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.approvals.shell import pipelines
from fsm_agent.approvals.shell_normalize import undisguised
from fsm_agent.errors import ConfigError

_PATTERN = re.compile(r"(?P<tool>[A-Za-z0-9_.*-]{1,64})(?:\((?P<what>.+)\))?", re.DOTALL)
_ACTIVE = frozenset(";&|<>$`()\n\r\\")
"""What may begin another command, wherever it stands."""
LONGEST = 500
"""Characters of a call that is remembered word for word; a longer one by its hash."""
HARMLESS = frozenset({"timeout", "description"})
"""Arguments beside a command that do not change what it does."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as patterns see it: a ``command``, or ``paths`` (absolute, links followed), or neither.
    ``given``: the paths as they stand in the arguments, also those in lists."""

    tool: str
    arguments: Mapping[str, Any]
    command: str | None = None
    paths: tuple[str, ...] = ()
    plain: bool = True
    given: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, tool: str, arguments: Mapping[str, Any], path_arguments: Sequence[str], workdir: str
    ) -> Asked:
        """Read what rules look at from a call. ``path_arguments``: names of the arguments that are paths."""
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
        plain = others <= HARMLESS and len(lines) == 1  # of two lines nobody knows which one counts
        return cls(
            tool,
            arguments,
            "\n".join(lines.values()) or None,
            paths if len(paths) == len(path_arguments) else (),
            plain,
            tuple(
                path
                for one in given
                for path in (one if isinstance(one, list | tuple) else [one])
                if isinstance(path, str)
            ),
        )

    @property
    def text(self) -> str:
        """The arguments as sorted compact JSON."""
        return json.dumps(
            dict(self.arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
        )

    @property
    def hash(self) -> str:
        """Return a pattern that stands for exactly this call."""
        return "#" + hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()

    @property
    def exactly(self) -> str:
        """The pattern of this call and, for a tool that works on one path, of every call for the same
        path."""
        if self.command is not None:
            what = glob.escape(self.command) if self.plain else self.hash
        elif len(self.paths) == 1:
            what = glob.escape(self.paths[0])
        else:
            what = glob.escape(self.text) if not self.paths else self.hash
        mistakable = len(what) > LONGEST or what.startswith(
            "#"
        )  # a text that reads as a hash would stand for another call
        return f"{self.tool}({self.hash if mistakable else what})"


COMMANDS = ("command", "cmd")
"""Arguments that hold the line of a shell."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Raises ``ConfigError`` when made from a text that is none."""

    text: str
    tool: str
    what: str | None

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Read a pattern; raises ``ConfigError`` for a text that is none."""
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
        """Say whether the pattern stands for one call, one command or one path alone."""
        return self.what is not None and _unescaped(self.what) is not None

    def names(self, tool: str) -> bool:
        """Say whether the pattern is for this tool."""
        return fnmatch.fnmatchcase(tool, self.tool)

    def allows(self, call: Asked, workdir: str) -> bool:
        """Say whether a yes to this pattern is one to the call. Narrow: a wildcard stands for one plain
        command only."""
        if not self.names(call.tool):
            return False
        if self.what is None or self.what == call.hash:
            return True
        if call.command is not None:
            if not call.plain:
                return False
            if call.command == _unescaped(self.what):
                return True
            return not _ACTIVE & set(call.command) and fnmatch.fnmatchcase(call.command, self.what)
        if call.paths:
            return all(_path_fits(path, self.what, workdir) for path in call.paths)
        return fnmatch.fnmatchcase(call.text, self.what)

    def forbids(self, call: Asked, workdir: str) -> bool:
        """Say whether a no to this pattern is one to the call. Wide: any command within it counts."""
        if not self.names(call.tool):
            return False
        if self.what is None or self.what == call.hash:
            return True
        if call.command is not None:
            return any(fnmatch.fnmatchcase(line, self.what) for line in _lines(call.command))
        if call.paths:
            return any(_path_fits(path, self.what, workdir) for path in call.paths)
        return fnmatch.fnmatchcase(call.text, self.what)


def _unescaped(text: str) -> str | None:
    """The only text that a pattern stands for; ``None`` when it stands for several."""
    plain = re.sub(r"\[([*?[])\]", r"\1", text)
    return plain if glob.escape(plain) == text else None


def _lines(command: str) -> list[str]:
    """The line itself, and every place of it where a command may begin, without the folder that the program
    is in."""
    lines = [command, " ".join(command.split())]
    text = undisguised(command, os.environ).replace("`", " ; ").replace("$(", " ; ")
    for stages in pipelines(text):
        for words in stages:
            for start in range(len(words)):
                lines.append(" ".join([posixpath.basename(words[start]), *words[start + 1 :]]))
                lines.append(" ".join(words[start:]))
    return lines


def _path_fits(path: str, pattern: str, workdir: str) -> bool:
    """``path`` is real; the part of the pattern before its first wildcard is made so too. Case counts where
    it does for files."""
    whole = os.path.join(workdir, os.path.expanduser(pattern))
    head = re.split(r"[*?[]", whole, maxsplit=1)[0]
    folder = head[: head.rfind("/") + 1] or "/"
    if _unescaped(whole) is not None:
        return os.path.normcase(os.path.realpath(_unescaped(whole) or "")) == os.path.normcase(path)
    real = os.path.join(os.path.realpath(folder), os.path.normpath(whole[len(folder) :]))
    return re.fullmatch(_translated(os.path.normcase(real)), os.path.normcase(path), re.DOTALL) is not None


def _translated(pattern: str) -> str:
    """A regular expression: ``**`` anything, ``*`` and ``?`` within one folder."""
    parts = re.split(r"(\*\*/?|\*|\?|\[[*?[]\])", pattern)
    known = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        known.get(part) or re.escape(part[1] if re.fullmatch(r"\[[*?[]\]", part) else part) for part in parts
    )
