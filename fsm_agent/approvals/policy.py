"""Hard lines: commands that cannot be approved, because they would destroy the machine or the home
directory, or would wait for a password that cannot be entered. Pure.

This is a seat belt, not a wall: it prevents blunders that a tired person would approve. It looks through
quotes, variables, wrappers such as ``sudo``, and nested shells; a program that hides what it does gets
through, and a person decides about it as about every other command. A program's name alone never triggers a
hard line: its operand must be a system folder, the home directory or a disk."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fsm_agent.approvals.programs import UNKNOWN, Command, Word, base_name, names
from fsm_agent.approvals.shell import MAX_COMMAND, read

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
    """Say whether a word of a command names a whole disk or partition."""
    return _DISK.match(word) is not None


@dataclass(frozen=True, slots=True)
class PathPlace:
    """Where a command runs, as far as known."""

    home: str
    directory: str

    def is_vital(self, word: str) -> bool:
        """Say whether this path, or everything in it, is vital to the machine or the user."""
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
    """Say whether the words contain a short option with one of these letters, or this long option, perhaps
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
    """Say whether ``find`` deletes without a test that could exclude anything."""
    words, kept = iter(rest), list[str]()
    for word in words:
        value = next(words, "") if word in _IDLE_TESTS | _NAME_TESTS else ""
        kept += [] if word in _IDLE_TESTS or (word in _NAME_TESTS and not value.strip("*?.")) else [word]
    deletes = any(word == "-delete" or base_name(word) in ("rm", "shred", "unlink") for word in kept)
    return deletes and all(word in _FIND_WORDS for word in kept if word.startswith("-"))
