"""Threat: a command that is not what it seems. It is read as it runs, nothing that acts runs unasked, and what is
not understood is asked about each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fsm_agent.approvals.policy import hard_line
from fsm_agent.approvals.rules import Asked, Pattern, allows
from fsm_agent.settings.model import ApprovalSettings
from tests.security.shell_oracle import ACTS, REAL, Sandbox, is_read
from tests.security.shell_tricks import OPTIONS, READS, Tricks

GRANTED = {
    "nothing": (),
    "read-only": ("terminal(@read-only)",),
    "remembered": ("terminal(git log*)", "terminal(ls *)", "terminal(echo *)", "terminal(sort *)", "terminal(find *)", "terminal(sed *)"),
    "all of them": ("terminal(@read-only)", "terminal(git *)", "terminal(awk *)", "terminal(timeout 5 git *)", "terminal(sort *)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox(tmp_path_factory.mktemp("sandbox"))


def asked(sandbox: Sandbox, line: str) -> Asked:
    return Asked.of("terminal", {"command": line}, (), str(sandbox.work))


def granted(call: Asked, sandbox: Sandbox) -> list[str]:
    """What would let the call run unasked."""
    return [
        name
        for name, texts in GRANTED.items()
        if allows([Pattern.of(text) for text in texts], call, str(sandbox.work))
    ]


def check(sandbox: Sandbox, line: str) -> tuple[bool, bool]:
    """Run a line, and compare what happened with what was read. Was it understood, and would it run unasked?"""
    happened = sandbox.happens(line)
    call = asked(sandbox, line)
    assert call.reading is not None
    unasked, understood = granted(call, sandbox), not call.reading.unread
    assert understood or not unasked, (
        f"not understood ({call.reading.unread}), but allowed by {unasked}: {line!r}"
    )
    assert understood or not call.rememberable, f"not understood, but remembered: {line!r}"
    assert not (unasked and happened.acted), f"ran unasked by {unasked}: {line!r}\n{happened}"
    if understood:
        strange = [words for words in happened.ran if not is_read(words, call.reading.commands)]
        assert not strange, f"read otherwise than it ran: {line!r}\n{strange}\n{call.reading.commands}"
    return understood, bool(unasked)


def lines(seed: int, count: int) -> Iterator[str]:
    tricks, seen = Tricks(seed), set[str]()
    while len(seen) < count:
        if (line := tricks.line()) not in seen:
            seen.add(line)
            yield line


def tried(sandbox: Sandbox, some: Sequence[str]) -> tuple[int, int]:
    told = [check(sandbox, line) for line in some]
    return sum(understood for understood, _ in told), sum(unasked for _, unasked in told)


def test_tricks_are_read_as_they_run_or_asked_about(sandbox: Sandbox) -> None:
    understood, unasked = tried(sandbox, list(lines(1, 50)))
    assert understood > 5
    assert unasked > 0


def test_options_that_write_or_run_are_asked_about(sandbox: Sandbox) -> None:
    assert tried(sandbox, OPTIONS[:30])[1] == 0


def test_harmless_lines_run_unasked_as_they_are_read(sandbox: Sandbox) -> None:
    assert [line for line in READS if check(sandbox, line) != (True, True)] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_many_tricks_are_read_as_they_run_or_asked_about(sandbox: Sandbox, seed: int) -> None:
    understood, unasked = tried(sandbox, list(lines(seed, 150)))
    assert understood > 15
    assert unasked > 2


def test_the_sandbox_sees_what_happens(sandbox: Sandbox) -> None:
    assert sandbox.happens("rm 'a b' c").ran == [["rm", "a b", "c"]]
    assert sandbox.happens("echo x > owned").acted
    assert not sandbox.happens("cat a.txt | grep one").acted
    assert not ACTS & REAL


# Everyday commands

EVERYDAY = Path(__file__).with_name("everyday_commands.txt").read_text("utf-8").splitlines()
PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def test_no_everyday_command_is_refused_for_good() -> None:
    assert len(set(EVERYDAY)) == 165
    assert [line for line in EVERYDAY if hard_line(line, directory="/home/me/project")] == []


def test_how_many_everyday_commands_ask(tmp_path: Path) -> None:
    """The figures of the guide: by default all of them, and with the set of those that only read fewer."""
    work = str(tmp_path)
    calls = [Asked.of("terminal", {"command": line}, (), work) for line in EVERYDAY]
    default = ApprovalSettings()
    assert (default.allow, default.policy, default.bypass) == ((), {}, False)
    readers = [Pattern.of("terminal(@read-only)")]
    free = sum(allows(readers, call, work) for call in calls)
    known = sum(call.rememberable for call in calls)
    told = f"Of 165 everyday commands none is refused for good, {free} run unasked with it, and {known} can be remembered"
    assert told in " ".join(PAGE.read_text("utf-8").split())
