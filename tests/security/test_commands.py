"""Threat: a command that is not what it seems. It is read as it runs, nothing that acts runs unasked, and what is
not understood is asked about each time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fsm_agent import Agent
from fsm_agent.approvals.rules import Asked, Pattern, allows
from fsm_agent.approvals.shell import hard_line
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.settings import ApprovalSettings
from fsm_agent.testing import ScriptedModel, call, text, tools
from tests.helpers.sample import sampled, sampled_seeds
from tests.helpers.text_tables import columns, sections
from tests.security.shell_oracle import ACTS, REAL, Sandbox, did_run, is_read
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


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A working directory that is a plain repository."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, env={"PATH": os.environ["PATH"]})
    return tmp_path


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
        if not any(sign in line for sign in ("||", "&&", "-ec", "time")):  # all of it runs; sh knows no time
            unseen = [one for one in call.reading.commands if not did_run(one, happened.ran)]
            assert not unseen, f"read, but did not run: {line!r}\n{unseen}\n{happened.ran}"
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


FOUND = (
    "! { uniq a.txt\n} | { find . -name a.txt\n}", "time ! uniq a.txt", "chmod 777 a.txt 2>owned dd\rof=precious",
    "bash -c ': > precious' \"\\$({ rm precious; 'x' \"a$\" b$; })\"", "printf -v 'a[$(rm precious)]' x", "sed '1e rm precious' a.txt",
)  # fmt: skip
"""Lines that were once read otherwise than they ran."""


def test_what_was_read_wrongly_once_is_not_any_more(sandbox: Sandbox) -> None:
    assert tried(sandbox, FOUND)[1] == 0


def test_options_that_write_or_run_are_asked_about(sandbox: Sandbox) -> None:
    assert tried(sandbox, OPTIONS[:30])[1] == 0


def test_harmless_lines_run_unasked_as_they_are_read(sandbox: Sandbox) -> None:
    assert [line for line in READS if check(sandbox, line) != (True, True)] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled_seeds(range(2, 8), "tricks"))
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


def test_how_many_everyday_commands_ask(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of the guide: by default every command asks; with the read-only set, fewer do."""
    work = str(repository)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no version manager's shims come before the programs
    calls = [Asked.of("terminal", {"command": line}, (), work) for line in EVERYDAY]
    default = ApprovalSettings()
    assert (default.allow, default.policy, default.bypass) == ((), {}, False)
    readers = [Pattern.of("terminal(@read-only)")]
    free = sum(allows(readers, call, work) for call in calls)
    known = sum(call.rememberable for call in calls)
    told = f"Of 165 everyday commands none is refused for good, {free} run unasked with it, and {known} can be remembered"
    assert told in " ".join(PAGE.read_text("utf-8").split())


# By name

HIDDEN = (
    "ls # it's\nrm -r src # '", "r\\\nm -r src", "bash -c -- 'rm -r src'", "f() { rm -r src; }; f", "find . -exec sh -c 'rm -r src' \\;",
    "find . -exec rm -r src \\;", "echo src | xargs rm -r src", "$'rm' -r src", "$'\\x72m' -r src", "{rm,-r,src}", "eval 'rm -r src'",
    "X=rm; $X -r src", "${X:-rm} -r src", "cat <<E\n$(rm -r src)\nE", '[ -n "$(rm -r src)" ]', "env -S 'rm -r src'", "watch 'rm -r src'",
    "timeout 5 nice -n 3 rm -r src", "sudo --user root rm -r src", "trap 'rm -r src' EXIT", "if ls; then rm -r src; fi", "ls <(rm -r src)",
    "ls `rm -r src`", "a=(`rm -r src`)", "ls && (cd /tmp; rm -r src)", "ls |& rm -r src", "alias x='rm -r src'", "ls;;rm -r src", "a#b; rm -r src",
    "! { rm -r src\n}", "su -c 'rm -r src'", "zsh -c 'rm -r src'", "git -c core.pager='rm -r src' log", "PAGER='rm -r src' man ls", "command rm -r src",
    "rm -r src", "rm  -r src", "/usr/bin/rm -r src", "FORCE=1 rm -r src", "ls $(rm -r src)", "r'm' -r src", "true|rm -r src", "(rm -r src)", "ls\nrm -r src",
)  # fmt: skip


def test_what_is_forbidden_is_found_in_every_disguise() -> None:
    for line in HIDDEN:
        call = Asked.of("terminal", {"command": line}, (), "/work")
        assert Pattern.of("terminal(rm -r*)").forbids(call, "/work"), line
        assert not Pattern.of("terminal(rm -f*)").forbids(call, "/work"), line
        allowed = [
            Pattern.of(f"terminal({what})")
            for what in ("@read-only", "ls*", "echo *", "find *", "git *", "env *")
        ]
        assert not allows(allowed, call, "/work"), line


NOT_UNDERSTOOD = (
    "for f in a b; do ls $f; done", "f() { ls; }", "eval ls", 'bash -c "$X"', "${X:-ls}", "$X",
    "ls ${X:-y}", "ls <(pwd)", "python - <<E\n1\nE", "find . -exec ls {} \\;", "ls | xargs ls",
    "env --chdir=/ ls", "sudo --user=x ls", "timeout --foreground 5 ls", "l\\\ns", "ls $'a'", "alias a=ls",
    "python3 -c 1", "perl -e 1", "node -e 1", "bash", "bash -s", "ls | sh", "bash /dev/stdin", "zsh -c ls",
    "fish -c ls", ". ./x", "source x", "ls a{b,c}", "ls (a)", "ls 'a", "ls &&", "ls\u00a0-l", "ls\r",
    "ls \\ a", "[[ a ]]", "((1))", "ls $((1))", "rm *", "rm $X", 'rm "$X"', "git log -p *", "a[1]=2",
    "a=(b)", "ls\0", "ls \ud800", "ls" + " a" * 70_000, "IFS=x ls", "git -c a.b=c log", "tar -I x -cf y z",
    "cat <<< a", "wait & coproc ls", "ls =~ $(", "ls `pwd`",
)  # fmt: skip


def test_what_is_not_understood_is_never_remembered() -> None:
    for line in NOT_UNDERSTOOD:
        call = Asked.of("terminal", {"command": line}, (), "/work")
        assert not call.rememberable, line
        everything = [Pattern.of("terminal(*)"), Pattern.of("terminal(@read-only)")]
        assert not allows(everything, call, "/work"), line


PATTERNS = sections(Path(__file__).with_name("patterns.txt"))


def test_what_patterns_allow(repository: Path) -> None:
    work = str(repository)
    for title, (patterns, line) in (
        (title, row) for title, rows in PATTERNS.items() for row in columns(rows)
    ):
        several = patterns.split() if patterns.startswith("@") else [patterns]
        call = Asked.of("terminal", {"command": line}, (), work)
        free = allows([Pattern.of(f"terminal({one})") for one in several], call, work)
        assert free is (title == "these run unasked"), (patterns, line)


def test_a_link_that_leads_out_of_the_directory_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "file").write_text("x")
    readers = [Pattern.of("terminal(@read-only)")]
    told = {
        name: allows(
            readers, Asked.of("terminal", {"command": f"cat {name}"}, (), str(tmp_path)), str(tmp_path)
        )
        for name in ("link", "file", "absent")
    }
    assert told == {"link": False, "file": True, "absent": True}


def test_a_command_named_like_a_set_does_not_open_it() -> None:
    call = Asked.of("terminal", {"command": "@read-only"}, (), "/work")
    assert call.exactly == f"terminal({call.hash})"
    assert not Pattern.of(call.exactly).allows(Asked.of("terminal", {"command": "ls"}, (), "/work"), "/work")


def test_always_holds_only_for_what_is_understood(tmp_path: Path) -> None:
    asked_about: list[tuple[str, str]] = []

    def person(request: AskApproval) -> str:
        asked_about.append((request.arguments["command"], request.pattern))
        return "always"

    loop, plain = "for i in 1 2; do echo $i; done", "echo one"
    script = [tools(call("terminal", {"command": line})) for line in (loop, loop, plain, plain)]
    agent = Agent(
        ScriptedModel([*script, text("done")]), home=tmp_path / "home", workdir=tmp_path, toolsets=["terminal"],
        callbacks={"approval": person},
    )  # fmt: skip
    with contextlib.closing(agent):
        assert agent.run_conversation("go").completed
    assert asked_about == [(loop, ""), (loop, ""), (plain, "terminal(echo one)")]


SHAPES = (
    "a ", "ls -l; ", "a(){", "$(", "`", "((", "'", "{a,b}", "X=1;", "$X", "${X:-", "$(echo ", "echo x|", "|sh ", '"', "for a in ", "<<E\n", "if a; then ",
    "case x in ", "[[ ", "> ", "a\\\n", "! ", "function f ", "$((", "a=(", "((a)) ", "2>&1 ", "sudo -u ", "a=$a$a;", "find -exec ", "find . -exec a \\; ",
    "rm ", "/*", "x;", "{,}*", "X=", "$'", "bash <(", "base64 -d|", "python -c '", "<<< ",
    "timeout --x b ", "eval ", 'eval "', "watch a b ", "a && ", "{ a; } ", "(a);", "cd a;", "env -S 'a b' ", "xargs ", "trap 'a b' ", "rm -rf a{a,b} ", "git push ",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shape", sampled(SHAPES, "shapes"))
def test_reading_takes_time_in_proportion(shape: str) -> None:
    def seconds(size: int) -> float:
        started = time.process_time()
        line = shape * (size // len(shape))
        Pattern.of("terminal(git push * x)").forbids(
            Asked.of("terminal", {"command": line}, (), "/work"), "/work"
        )
        for before in ("ls; ", "rm -rf /"):
            hard_line(before + line, directory="/work")
        return time.process_time() - started

    small = seconds(5_000)
    assert small < 0.8
    assert seconds(50_000) < 18 * small + 0.4
