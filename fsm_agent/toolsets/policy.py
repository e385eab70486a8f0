"""Commands that nobody may approve, because they would destroy the machine or wait for a password that cannot come.

A pure reading of the command's words. It keeps a model from a blunder that a tired person would wave through; it is no
sandbox, and a program that hides what it does gets past it. ``curl … | sh`` and the like are a person's decision.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Sequence

MAX_COMMAND = 20_000
"""Characters. Longer commands are refused unread; a script belongs in a file."""
MAX_NESTING = 8
"""Commands inside commands: shells in shells, substitutions, and chains such as ``sudo env nice``."""
UNREADABLE = "the command is too long or too deeply nested to be checked"

_FORK_BOMB = re.compile(r"([\w:.]{1,40})\(\)\{[^}]{0,200}?\1\|\1&")
_NO_COMMAND = re.compile(r"-.*|[A-Za-z_]\w*=.*|\d[\d.]*[smhd]?", re.DOTALL)
_GLOBS = re.compile(r"(?:/[.\[\]!^,{}]*[*?][*?.\[\]!^,{}]*)+/*$")
_DISK = re.compile(r"/dev/(?:r?disk|sd|hd|vd|xvd|nvme|mmcblk|md|dm-|loop|mapper/)\w*")
_SEPARATOR = re.compile(r"[;&|()\n]+")
_BEFORE_A_COMMAND = frozenset(
    (
        *("sudo", "doas", "env", "command", "builtin", "exec", "nohup", "nice", "ionice", "time", "timeout", "stdbuf"),
        *("setsid", "xargs", "busybox", "eval", "then", "do", "else", "if", "while", "until", "{", "!"),
    )
)
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ksh", "fish", "ash", "su"))
_SYSTEM = frozenset(
    (
        *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/sbin", "/sys"),
        *("/usr", "/var", "/Users", "/System"),
    )
)
_HOME = frozenset(("~", "$HOME", "${HOME}"))
_STOPPING = frozenset(("shutdown", "reboot", "halt", "poweroff"))
_SUDO_VALUES = frozenset(("-u", "-g", "-h", "-p", "-C", "-T", "-U", "-D", "-R", "-r", "-t"))
_FIND_ACTIONS = frozenset(("-delete", "-exec", "-execdir", "-depth", "-xdev", "-mount", "-rf", "-r", "-f", "-fr"))


def hard_line(command: str) -> str | None:
    """Why this shell command is never run, whoever approves it; ``None`` when a person may decide."""
    return _reason(command, 0)


def _reason(command: str, depth: int) -> str | None:
    if len(command) > MAX_COMMAND or depth > MAX_NESTING:
        return UNREADABLE
    text = re.sub(r"\\\n", " ", command)
    text = re.sub(r"\$\{IFS\}|\$IFS\b", " ", text).replace("`", " ;$( ")
    if _FORK_BOMB.search(re.sub(r"\s+", "", text)):
        return "a fork bomb stops the machine"
    at_top = False
    for words in _commands(text):
        if reason := _judge(words, at_top, depth):
            return reason
        if words[0] == "cd":
            at_top = any(_is_vital(word) for word in words[1:])
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a line, as words without their quotes."""
    words: list[str] = []
    for word in _words(text):
        if _SEPARATOR.fullmatch(word):
            if words:
                yield words
            words = []
        else:
            words.append(word)
    if words:
        yield words


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:  # a quote without its partner
        return re.sub(r"[\"']", " ", _SEPARATOR.sub(r" ; ", text)).split()


def _judge(words: Sequence[str], at_top: bool, depth: int) -> str | None:
    for word, target in zip(words, [*words[1:], ""], strict=True):
        if ">" in word and not word.strip("<>&|") and _DISK.match(target):
            return "writing to a disk device destroys what is on it"
        if "$(" in word and (reason := _reason(word.replace("$(", " ; "), depth + 1)):
            return reason
    for count, start in enumerate(_starts(words)):
        if count > MAX_NESTING:
            return UNREADABLE
        name, rest = _name(words[start]), words[start + 1 :]
        if name in ("sudo", "doas") and any(_has_flag([word], "S", "stdin") for word in _options(rest)):
            return "sudo would read a password from standard input"
        inner = " ".join(rest) if name == "eval" else _after_c(rest) if name in _SHELLS else ""
        if inner and (reason := _reason(inner, depth + 1)):
            return reason
        if reason := _destroys(name, rest, at_top):
            return reason
    return None


def _starts(words: Sequence[str]) -> Iterator[int]:
    """Where a command may begin: the first word, and after words like sudo the next one that is no option or number.

    The word after an option may be its value, so the one after that may be the command as well.
    """
    after_option = False
    for index, word in enumerate(words):
        if _NO_COMMAND.fullmatch(word):
            after_option = after_option or word.startswith("-")
            continue
        yield index
        if _name(word) not in _BEFORE_A_COMMAND and not after_option:
            return
        after_option = False


def _name(word: str) -> str:
    return posixpath.basename(word.lstrip("\\"))


def _destroys(name: str, rest: Sequence[str], at_top: bool) -> str | None:
    checks: dict[str, Callable[[], bool]] = {
        "rm": lambda: _has_flag(rest, "rR", "recursive") and _hits(rest, at_top),
        "chmod": lambda: _has_flag(rest, "R", "recursive") and _hits(rest, at_top) and _opens_all(rest),
        "chown": lambda: _has_flag(rest, "R", "recursive") and _hits(rest, at_top),
        "find": lambda: _hits(rest, at_top) and _deletes_all(rest),
        "dd": lambda: any(word.startswith("of=") and _DISK.match(word[3:]) for word in rest),
        "tee": lambda: any(_DISK.match(word) for word in rest),
        "kill": lambda: "-1" in rest[1:],
        "init": lambda: rest[:1] in (["0"], ["6"]),
        "telinit": lambda: rest[:1] in (["0"], ["6"]),
        "systemctl": lambda: any(word in _STOPPING for word in rest),
    }
    reasons = {
        **dict.fromkeys(("rm", "find"), "it would delete the system or the home directory"),
        **dict.fromkeys(("chmod", "chown"), "it would change the permissions of the whole system"),
        **dict.fromkeys(("dd", "tee"), "writing to a disk device destroys what is on it"),
        **dict.fromkeys(("init", "telinit", "systemctl"), "it would stop the machine"),
        "kill": "it would kill every process",
    }
    if name in _STOPPING:
        return "it would stop the machine"
    if name == "mkfs" or name.startswith("mkfs.") or name == "wipefs":
        return "making a file system destroys what is on the disk"
    return reasons[name] if name in checks and checks[name]() else None


def _options(rest: Sequence[str]) -> Iterator[str]:
    """The options of sudo itself, up to the command."""
    words = iter(rest)
    for word in words:
        if not word.startswith("-"):
            return
        yield word
        if word in _SUDO_VALUES:
            next(words, None)


def _has_flag(words: Sequence[str], letters: str, long: str) -> bool:
    return any(
        word == f"--{long}" or (word[:1] == "-" and word[:2] != "--" and any(letter in word for letter in letters))
        for word in words
    )


def _hits(rest: Sequence[str], at_top: bool) -> bool:
    """Is a system directory, the home directory, or all that is in them, among the operands?"""
    return "--no-preserve-root" in rest or any(
        _is_vital(word) or (at_top and word.removeprefix("./") in ("*", ".", "")) for word in rest
    )


def _is_vital(word: str) -> bool:
    if not word.startswith(("/", "~", "$")):
        return False
    path = _GLOBS.sub("/", word)
    path = "/" + posixpath.normpath(path).lstrip("/") if path.startswith("/") else posixpath.normpath(path)
    return path in _SYSTEM or path in _HOME


def _opens_all(rest: Sequence[str]) -> bool:
    return any(re.fullmatch(r"[0-7]?777|0*|[augo]*[+=]rwx", word) for word in rest if word)


def _deletes_all(rest: Sequence[str]) -> bool:
    deletes = "-delete" in rest or "rm" in map(_name, rest)
    return deletes and all(word in _FIND_ACTIONS for word in rest if word.startswith("-"))


def _after_c(rest: Sequence[str]) -> str:
    for index, word in enumerate(rest[:-1]):
        if word[:1] == "-" and word[:2] != "--" and "c" in word:
            return rest[index + 1]
    return ""
