"""Commands that nobody may approve, because they would destroy the machine or wait for a password that cannot
come.

A pure reading of the command's words, after the simplest disguises were taken off (``disguise``). It keeps a
model from a blunder that a tired person would wave through; it is no sandbox, and a program that hides what
it does gets past it: a script that is downloaded, or written first and run then, is a person's decision, as
every command is."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsm_agent.approvals.destroys import PathPlace, destroys, is_disk, is_switch, matching_name
from fsm_agent.approvals.shell import pipelines
from fsm_agent.approvals.shell_normalize import piped, undisguised

MAX_COMMAND = 20_000
"""Characters. Longer commands are refused unread; a script belongs in a file."""
MAX_NESTING = 8
"""Commands inside commands: shells in shells, substitutions, and chains such as ``sudo env nice``."""
MAX_STAGES = 50
"""Commands in one pipeline."""
UNREADABLE = "the command is too long or too deeply nested to be checked"

_FORK_BOMB = re.compile(r"([\w:.]{1,40})\(\)\{[^}]{0,200}?\1\|\1&")
_NO_COMMAND = re.compile(r"-.*|[A-Za-z_]\w*=.*|\d[\d.]*[smhd]?", re.DOTALL)
_BEFORE_A_COMMAND = frozenset(
    (
        *(
            "sudo",
            "doas",
            "env",
            "command",
            "builtin",
            "exec",
            "nohup",
            "nice",
            "ionice",
            "time",
            "timeout",
            "stdbuf",
        ),
        *(
            "setsid",
            "xargs",
            "busybox",
            "eval",
            "then",
            "do",
            "else",
            "if",
            "while",
            "until",
            "{",
            "!",
            "coproc",
        ),
    )
)
_SOMEWHERE_BEFORE_A_COMMAND = frozenset(
    (
        *(
            "chroot",
            "flock",
            "strace",
            "ltrace",
            "watch",
            "parallel",
            "systemd-run",
            "unshare",
            "nsenter",
            "script",
        ),
        *(
            "runuser",
            "setpriv",
            "chrt",
            "taskset",
            "fakeroot",
            "proot",
            "trap",
            "alias",
            "torsocks",
            "unbuffer",
        ),
        *(
            "ssh",
            "mosh",
            "tmux",
            "screen",
            "pkexec",
            "bwrap",
            "firejail",
            "gdb",
            "lldb",
            "expect",
            "rlwrap",
            "hyperfine",
            "entr",
        ),
        *("vi", "vim", "nvim", "ex", "less", "more", "man", "xterm", "npx", "function"),
    )
)
"""What these run comes after words of their own, or in one word."""
_IN_ONE_WORD = frozenset(
    (*_SOMEWHERE_BEFORE_A_COMMAND, "git", "tar", "zip", "rsync", "scp", "export", "declare", "local")
)
"""What these run may stand in one word, by itself or behind ``=``, ``!`` or a word of theirs."""
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ksh", "fish", "ash", "su", "at", "batch"))
_GIT_RUNS = re.compile(r"(?:-c|--exec|-x)\s|\S* (?:[\w-]+\.[\w.-]+|--(?:upload-pack|receive-pack|exec))=")
"""Words of git that hold a command: settings, and what runs between commits or on the other side."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=(.*)", re.DOTALL)
_INTERPRETERS = re.compile(r"(?:python|perl|ruby|node|php|lua|g?awk|mawk|osascript|pwsh)[\d.]*")
_RUNS = re.compile(r"system|exec|popen|spawn|subprocess|check_|call\(|run\(|rmtree|qx|`")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|`([^`]*)`")
_REMOVED_TREE = re.compile(r"rmtree\W{1,4}(/\w*|~)(?=[\W]*[,)'\"])")
_PROCESS_INPUT = re.compile(r"\b((?:ba|z|da|k|a)?sh|source|\.)\s+<\(([^()]*)\)")
_SUDO_VALUES = frozenset(("-u", "-g", "-h", "-p", "-C", "-T", "-U", "-D", "-R", "-r", "-t"))


@dataclass(frozen=True, slots=True)
class _ShellReader:
    """``environ``: the variables that the command will see. ``directory``: where it will run, empty when not
    known."""

    environ: Mapping[str, str]
    directory: str

    def reason(self, command: str, depth: int) -> str | None:
        if len(command) > MAX_COMMAND or depth > MAX_NESTING:
            return UNREADABLE
        text = re.sub(r"\\\n", " ", command)
        text = undisguised(text, self.environ).replace("`", " ;$( ")
        text = re.sub(r"[<>]\(", " ;( ", _PROCESS_INPUT.sub(r" \2 | sh", text))
        if _FORK_BOMB.search(re.sub(r"\s+", "", text)):
            return "a fork bomb stops the machine"
        place = PathPlace(self.environ.get("HOME", ""), self.directory)
        for stages in pipelines(text):
            if len(stages) > MAX_STAGES:
                return UNREADABLE
            for number, words in enumerate(stages):
                if found := self.judged(words, stages[:number], place, depth):
                    return found
                if words[0] in ("cd", "pushd"):
                    place = place.entered([word for word in words[1:] if not word.startswith("-")])
        return None

    def judged(
        self, words: Sequence[str], before: Sequence[Sequence[str]], place: PathPlace, depth: int
    ) -> str | None:
        for word, target in zip(words, [*words[1:], ""], strict=True):
            if (
                ">" in word
                and not word.strip("<>&|")
                and (found := _written_to(target, appended=">>" in word))
            ):
                return found
            if "$(" in word and (found := self.reason(word.replace("$(", " ; "), depth + 1)):
                return found
        for word in words:  # variables that a program runs: PAGER, GIT_SSH_COMMAND, PROMPT_COMMAND
            if (given := _ASSIGNMENT.fullmatch(word)) is None:
                break
            if " " in given[1] and word is not words[-1] and (found := self.reason(given[1], depth + 1)):
                return found
        for count, start in enumerate(_starts(words)):
            if count > MAX_NESTING:
                return UNREADABLE
            name = matching_name(_name(words[start]))
            for text in self.inside(name, words[start + 1 :], before):
                if found := self.reason(text, depth + 1):
                    return found
            if found := _own(name, words[start + 1 :]) or destroys(name, words[start + 1 :], place):
                return found
        return None

    def inside(self, name: str, rest: Sequence[str], before: Sequence[Sequence[str]]) -> Iterator[str]:
        """Other commands that this one runs, as far as they can be read."""
        if name in _SHELLS:
            yield _after_c(rest)
            yield _here(rest) or piped(before) or ""
        elif name in ("source", "."):
            yield _here(rest) or piped(before) or ""
        elif name == "eval":
            yield " ".join(rest)
        elif name == "env" and any(word.startswith(("-S", "--split-string")) for word in rest):
            yield " ".join(
                word.removeprefix("-S").removeprefix("--split-string").lstrip("=") for word in rest
            )
        elif name == "xargs" and (given := piped(before)):
            yield " ".join([*rest[_xargs_options(rest) :], given.replace("\n", " ")])
        elif name in _IN_ONE_WORD:
            for before, word in zip(["", *rest], rest, strict=False):
                if " " in word and (name != "git" or _GIT_RUNS.match(f"{before} {word}")):
                    yield from dict.fromkeys((word.lstrip("!+: "), word.rpartition("=")[2].lstrip("!: ")))
                    yield re.sub(r"^\W*(?:shell|system|exec|silent|!)\W*", "", word)
        elif _INTERPRETERS.fullmatch(name):
            code = " ".join(rest)
            if _RUNS.search(code):
                yield from (
                    next(part for part in match.groups() if part is not None)
                    for match in _QUOTED.finditer(code)
                )
                yield from (f"rm -r {match[1]}" for match in _REMOVED_TREE.finditer(code))
                yield from (f"{word} " for word in re.findall(r"rm\s+-\w+\s+[/~$]\S*", code))


def hard_line(command: str, *, environ: Mapping[str, str] | None = None, directory: str = "") -> str | None:
    """Why this shell command is never run, whoever approves it; ``None`` when a person may decide.

    ``environ``: the variables that it will see, by default those of this process; ``directory``: where it
    will run."""
    return _ShellReader(os.environ if environ is None else environ, directory).reason(command, 0)


def _starts(words: Sequence[str]) -> Iterator[int]:
    """Where a command may begin: the first word, and after words like sudo the next one that is no option or
    number.

    The word after an option may be its value, so the one after that may be the command as well.
    """
    after_option = anywhere = False
    for index, word in enumerate(words):
        if _NO_COMMAND.fullmatch(word):
            after_option = after_option or word.startswith("-")
            continue
        yield index
        anywhere = anywhere or _name(word) in _SOMEWHERE_BEFORE_A_COMMAND
        if _name(word) not in _BEFORE_A_COMMAND and not after_option and not anywhere:
            return
        after_option = False


def _name(word: str) -> str:
    return posixpath.basename(word.lstrip("\\"))


def _own(name: str, rest: Sequence[str]) -> str | None:
    if name in ("sudo", "doas") and any(is_switch(word, "S", "stdin") for word in _sudo_options(rest)):
        return "sudo would read a password from standard input"
    return None


def _sudo_options(rest: Sequence[str]) -> Iterator[str]:
    """The options of sudo itself, up to the command."""
    words = iter(rest)
    for word in words:
        if not word.startswith("-"):
            return
        yield word
        if word in _SUDO_VALUES:
            next(words, None)


def _xargs_options(rest: Sequence[str]) -> int:
    """How many of the words are options of xargs itself, or their values."""
    count = 0
    while count < len(rest) and (rest[count].startswith("-") or rest[count].isdigit() or rest[count] == "{}"):
        count += 1
    return count


def _written_to(target: str, *, appended: bool) -> str | None:
    if is_disk(target):
        return "writing to a disk device destroys what is on it"
    if target in ("/proc/sysrq-trigger", "/proc/sys/kernel/sysrq"):
        return "it would stop the machine"
    if not appended and target in ("/etc/passwd", "/etc/shadow", "/etc/sudoers", "/etc/fstab"):
        return "it would overwrite a file that the system cannot do without"
    return None


def _after_c(rest: Sequence[str]) -> str:
    for index, word in enumerate(rest[:-1]):
        if word[:1] == "-" and word[:2] != "--" and "c" in word:
            return rest[index + 1]
    return ""


def _here(rest: Sequence[str]) -> str:
    return rest[rest.index("<<<") + 1] if "<<<" in rest[:-1] else ""
