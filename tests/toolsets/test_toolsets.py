"""The built-in tools, run the way a turn runs them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fsm_agent.errors import ConfigError
from fsm_agent.toolsets import toolset
from fsm_agent.toolsets.files import resolve
from fsm_agent.toolsets.process import HEAD, TAIL, kill
from fsm_agent.toolsets.terminal import run_shell
from tests.helpers.processes import alive, children
from tests.helpers.toolbench import ToolBench
from tests.helpers.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def core(tmp_path: Path) -> ToolBench:
    return ToolBench(toolset("core", tmp_path))


def test_the_core_tools_and_their_contracts(tmp_path: Path) -> None:
    specs = {tool.spec.name: tool.spec for tool in toolset("core", tmp_path)}
    contracts = {name: (spec.concurrency, spec.effect, spec.approval) for name, spec in specs.items()}
    readers = ("list_directory", "read_file", "search_files", "get_time", "calculate")
    assert contracts == dict.fromkeys(readers, ("parallel", "pure", "never")) | {
        "write_file": ("parallel", "idempotent", "ask"),
        "patch_file": ("parallel", "unsafe", "ask"),
        "terminal": ("serial", "unsafe", "ask"),
    }
    assert specs["write_file"].path_arguments == specs["patch_file"].path_arguments == ("path",)
    for spec in specs.values():
        assert spec.description
        assert all("description" in part for part in spec.parameters["properties"].values()), spec.name


def test_an_unknown_toolset_lists_the_known_and_a_root_must_be_a_directory(tmp_path: Path) -> None:
    known = "unknown toolset; given: nope; allowed: code, core, files, learn, memory, "
    with pytest.raises(ConfigError, match=known):
        toolset("nope")
    with pytest.raises(ConfigError, match="existing directory"):
        toolset("core", tmp_path / "missing")
    assert toolset("core")


def test_paths_lead_inside(tmp_path: Path) -> None:
    """Where they lead out is in approvals/test_security_tools.py, of every tool."""
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "inner").symlink_to(root / "in")
    assert resolve(root, "in/../in/new.txt") == (root / "in/new.txt").resolve()
    assert resolve(root, str(root / "in")) == (root / "in").resolve()
    assert resolve(root, "inner/x") == (root / "in/x").resolve()


def test_list_directory(tmp_path: Path, core: ToolBench) -> None:
    (tmp_path / "b.txt").write_text("12345")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "a").mkdir()
    (tmp_path / "z").symlink_to("b.txt")
    assert core.ok("list_directory").splitlines() == [".hidden  0", "a/", "b.txt  5", "z -> b.txt"]
    assert core.ok("list_directory", path="a") == "(empty directory)"
    assert "no such file" in core.error("list_directory", path="nope")
    assert "use read_file" in core.error("list_directory", path="b.txt")
    for number in range(1_005):
        (tmp_path / "a" / f"{number:04}").touch()
    assert core.ok("list_directory", path="a").splitlines()[-1] == "… and 5 more entries"


def test_read_file(tmp_path: Path, core: ToolBench) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\nthree\ncaf\xe9".encode() + b"\xff")
    assert core.ok("read_file", path="a.txt") == "1\tone\n2\ttwo\n3\tthree\n4\tcafé\ufffd"
    part = core.ok("read_file", path="a.txt", start_line=2, end_line=3)
    assert part == "2\ttwo\n3\tthree\n[more lines follow; continue with start_line=4]"
    assert core.ok("read_file", path="a.txt", start_line=9) == "(a.txt has only 4 lines)"
    assert "before start_line" in core.error("read_file", path="a.txt", start_line=3, end_line=2)
    assert "start_line" in core.error("read_file", path="a.txt", start_line=0)


def test_files_that_are_hard_to_read(tmp_path: Path, core: ToolBench) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\1")
    (tmp_path / "long").write_text("x" * 50_000 + "\nend")
    (tmp_path / "many").write_text("line\n" * 5_000)
    (tmp_path / "wide").write_text(("y" * 1_000 + "\n") * 100)
    os.mkfifo(tmp_path / "pipe")
    assert core.ok("read_file", path="empty") == "(empty file)"
    assert "a binary file of 6 bytes" in core.error("read_file", path="binary")
    assert "no such file" in core.error("read_file", path="nope")
    assert "use list_directory" in core.error("read_file", path=".")
    assert "not a regular file" in core.error("read_file", path="pipe")
    first, second = core.ok("read_file", path="long").splitlines()
    assert first.endswith(" … [48,000 more characters in this line]")
    assert second == "2\tend"
    last = core.ok("read_file", path="many").splitlines()[-1]
    assert last == "[more lines follow; continue with start_line=2001]"
    assert len(core.ok("read_file", path="wide")) < 62_000


def test_search_by_content_and_by_name(tmp_path: Path, core: ToolBench) -> None:
    for place in ("src/a.py", "src/deep/b.py", "src/c.txt", ".git/config", "node_modules/x.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"first\n  def {Path(place).stem}(): Needle\nneedle\n")
    (tmp_path / "binary.py").write_bytes(b"needle\0")
    (tmp_path / "link.py").symlink_to("src/a.py")

    def found(**asked: object) -> list[str]:
        return core.ok("search_files", **asked).splitlines()

    three = ["src/a.py:3: needle", "src/c.txt:3: needle", "src/deep/b.py:3: needle"]
    assert found(content="^needle$") == ["3 matches in 3 files:", *three]
    few = found(content="needle", ignore_case=True, max_results=2)
    assert few[0] == "6 matches in 3 files; the first 2 are shown:"
    assert found(content="needle", path="src/a.py") == ["1 match in 1 file:", "src/a.py:3: needle"]
    assert found(content="nowhere") == ["No matches."]
    assert found(name="*.PY", ignore_case=True) == ["3 files:", "binary.py", "src/a.py", "src/deep/b.py"]
    assert found(name="src/**/*.py")[1:] == ["src/a.py", "src/deep/b.py"]
    assert found(name="b.*", content="def")[1:] == ["src/deep/b.py:2: def b(): Needle"]
    assert "Give content, name, or both" in core.error("search_files")
    assert "regular expression cannot be used" in core.error("search_files", content="([")
    assert "no such file" in core.error("search_files", content="x", path="nope")
    assert "outside the working directory" in core.error("search_files", content="x", path="..")


def test_a_pattern_that_takes_for_ever_can_be_interrupted(tmp_path: Path, core: ToolBench) -> None:
    (tmp_path / "evil.txt").write_text("a" * 60 + "!")
    before = children()
    outcome = core.stopped("search_files", lambda: children() > before, content="(a+)+$")
    assert outcome.text == "The search was stopped."


def test_write_file(tmp_path: Path, core: ToolBench) -> None:
    path, folder = "new/deep/a.txt", tmp_path / "new/deep"
    written = core.ok("write_file", path=path, content="é\r\n")
    assert written == "Wrote 4 bytes to new/deep/a.txt (a new file)."
    (folder / "a.txt").chmod(0o750)
    assert core.ok("write_file", path=path, content="").splitlines() == [
        "Wrote 0 bytes to new/deep/a.txt (replaced 4 bytes).", "--- new/deep/a.txt", "+++ new/deep/a.txt",
        "@@ -1 +0,0 @@", "-é",
    ]  # fmt: skip
    assert (folder / "a.txt").stat().st_mode & 0o777 == 0o750
    assert [entry.name for entry in folder.iterdir()] == ["a.txt"]
    assert "is a directory" in core.error("write_file", path="new", content="x")
    assert core.error("write_file", path="new/deep/a.txt/b", content="x")
    assert core.error("write_file", path="x" * 300, content="x")
    # through a link, which stays one
    (tmp_path / "link.txt").symlink_to(folder / "a.txt")
    core.ok("write_file", path="link.txt", content="new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (folder / "a.txt").read_text() == "new"


def test_terminal_reports_exit_code_and_output(
    tmp_path: Path, core: ToolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.setenv("SOME_API_KEY", "secret")
    for command, said in (
        ("echo out; echo err >&2; exit 3", "exit code 3\nout\nerr"),
        ("true", "exit code 0\n(no output)"),
        ("cat", "exit code 0\n(no output)"),
        (r"printf '\033[31mred\033[0m 10%%\r 99%%\r100%%\n'", "exit code 0\n100%"),
        ("echo a > >(sleep 0.1; sed s/a/b/)", "exit code 0\nb"),  # what ends by itself is waited for
        ("echo ${SOME_API_KEY:-hidden}", "exit code 0\nhidden"),
    ):
        assert core.ok("terminal", command=command) == said
    assert core.ok("terminal", command="basename $PWD", directory="sub") == "exit code 0\nsub"
    assert core.ok("terminal", command="kill -9 $$").startswith("killed by signal 9")
    assert core.error("terminal", command="true", directory="nope")
    assert "outside" in core.error("terminal", command="true", directory="..")
    for command in ("sudo -S true", f"rm -rf {'../' * 40}", f"cd {'../' * 40}; rm -rf *"):
        assert "no approval can change that" in core.error("terminal", command=command, directory="sub")


def test_long_output_keeps_head_and_tail(core: ToolBench) -> None:
    text = core.ok("terminal", command="echo start; head -c 300000 /dev/zero | tr '\\0' x; echo; echo end")
    assert text.startswith("exit code 0\nstart\n")
    assert text.endswith("\nend")
    assert "bytes left out" in text
    assert len(text) < HEAD + TAIL + 200


def ends(pid: int) -> None:
    until(lambda: not alive(pid), f"the end of process {pid}")


@pytest.mark.parametrize("how", ["timeout", pytest.param("interrupt", marks=pytest.mark.slow)])
def test_the_whole_group_is_killed(tmp_path: Path, core: ToolBench, how: str) -> None:
    child = tmp_path / "child"

    def begun() -> bool:
        return child.exists() and child.read_text() != ""

    command = "echo begun; (trap '' TERM; echo $BASHPID > child; while :; do sleep 0.1; done) & wait"
    if how == "timeout":
        outcome = core.stopped("terminal", begun, after=60, command=command, timeout=60)
        assert outcome.status == "error"
        assert outcome.text == "Killed after 60 seconds, with all that it started. Output so far:\nbegun"
    else:
        assert core.stopped("terminal", begun, command=command).status == "unknown"
    ends(int(child.read_text()))


async def test_a_command_that_is_cancelled_while_it_starts_is_killed_too(tmp_path: Path) -> None:
    before = children()
    running = asyncio.ensure_future(run_shell("echo $$ > shell; sleep 60", tmp_path, 60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    until(lambda: children() <= before, "the end of all that was started")
    shell = tmp_path / "shell"
    if shell.exists() and (pid := shell.read_text()):
        ends(int(pid))


@pytest.mark.slow
def test_a_program_left_in_the_background_is_ended(tmp_path: Path, core: ToolBench) -> None:
    said = core.ok("terminal", command="sleep 600 & echo $! > pid; echo done")
    assert said == "exit code 0\ndone\n[What it left running in the background was ended with it.]"
    ends(int((tmp_path / "pid").read_text()))


def test_a_daemon_that_a_command_starts_goes_on(tmp_path: Path, core: ToolBench) -> None:
    command = "setsid sleep 30 > /dev/null 2>&1 & echo $! > pid"
    assert core.ok("terminal", command=command) == "exit code 0\n(no output)"
    pid = int((tmp_path / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    os.kill(pid, 9)


def test_a_command_ends_with_the_process_that_wanted_it(tmp_path: Path) -> None:
    """Also when that process is killed, and can clean up nothing."""
    program = f"""
import asyncio, pathlib, sys
sys.path.insert(0, {str(ROOT)!r})
from fsm_agent.toolsets.terminal import run_shell
command = "echo $$ > shell; setsid sleep 60 & echo $! > daemon; sleep 60"
asyncio.run(run_shell(command, pathlib.Path("."), 60))
"""
    agent = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path)
    files = [tmp_path / "shell", tmp_path / "daemon"]
    until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), "both")
    agent.kill()
    agent.wait()
    for file in files:
        ends(int(file.read_text()))


def test_a_process_that_has_just_ended_keeps_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed after its end and before asyncio has read its status."""
    killed, collect = threading.Event(), os.waitpid

    def late(pid: int, options: int) -> tuple[int, int]:
        assert killed.wait(PATIENCE)
        return collect(pid, options)

    async def status() -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-IS", "-c", "raise SystemExit(3)")
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        kill(process)
        killed.set()
        return await process.wait()

    monkeypatch.setattr(os, "waitpid", late)
    assert asyncio.run(status()) == 3


@pytest.mark.behaviour("EXEC-37")
def test_get_time(core: ToolBench) -> None:
    assert core.ok("get_time", zone="UTC").endswith("+00:00 (UTC)")
    assert "day " in core.ok("get_time")
    for zone in ("Mars/Olympus", "../etc/passwd", "America", "/etc/passwd", "a\0b"):
        assert "not an IANA time zone" in core.error("get_time", zone=zone)


@pytest.mark.behaviour("EXEC-37")
def test_calculate(core: ToolBench) -> None:
    for expression, value in (
        ("2 * (3 + 4) ** 2", "98"),
        ("-7 // 2", "-4"),
        ("7 % 4 + 1e3", "1003.0"),
        ("2 ** -1", "0.5"),
        ("2 ** 100", str(2**100)),
        ("sqrt(16) + max(1, 2, 3)", "7.0"),
        ("round(pi)", "3"),
        ("factorial(20) // gcd(12, 18)", "405483668029440000"),
        ("round(2.567, 2)", "2.57"),
    ):
        assert core.ok("calculate", expression=expression) == value


NO_ARITHMETIC = (
    "", "1 +", "1 / 0", "2 ** 99999999", "10 ** 10 ** 10", "factorial(99999)", "(-1) ** 0.5", "sqrt(-1)",
    "__import__('os')", "(1).real", "[1]", "'a' * 9", "x", "True", "1 if 1 else 2", "sqrt(x=1)", "min()",
    "9" * 999, "(" * 500 + ")" * 500, "-" * 900 + "1", "1" * 2_000, "1e308 * 10 ** 400", "3j", "f(1)",
    "1 < 2", "1or 2", "1e308 * 10", "1e400", "round(10, -10 ** 9)", "a\0b", "1(2)", "lambda: 1", "f'{1}'",
)  # fmt: skip


def test_what_is_no_arithmetic_is_refused_quickly(core: ToolBench) -> None:
    for expression in NO_ARITHMETIC:
        outcome = core.use("calculate", expression=expression)
        if expression not in ("9" * 999, "-" * 900 + "1"):
            assert outcome.status == "error", outcome
        assert outcome.seconds < PATIENCE / 2, expression
