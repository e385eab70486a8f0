"""Background jobs: started, read, waited for, stopped, and ended when they are no longer needed."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.support.threads import Interrupt
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets import toolset
from fsm_agent.toolsets.process import TERM_GRACE, readable
from fsm_agent.toolsets.terminal import MAX_RUNNING, Jobs
from tests.helpers.processes import alive
from tests.helpers.toolbench import ToolBench
from tests.helpers.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[ToolBench]:
    """The terminal toolset of one agent, in ``tmp_path``."""
    made = ToolBench(toolset("terminal", tmp_path))
    yield made
    made.runner.close()


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    made.close()


def pids(folder: Path, *names: str) -> list[int]:
    files = [folder / name for name in names]
    until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files))
    return [int(file.read_text()) for file in files]


FAMILY = "echo $$ > shell; sleep 60 & echo $! > child; setsid sleep 60 & echo $! > daemon; wait"
"""A shell with a child in its group and one that left it."""


def test_a_job_from_start_to_end(desk: ToolBench, tmp_path: Path) -> None:
    assert desk.ok("job_list") == "No jobs."
    assert desk.ok("job_start", command="echo begun; read x < go; echo ended; exit 3") == "Started job1."
    os.mkfifo(tmp_path / "go")
    told = desk.ok("job_wait", job="job1", text="begun")
    assert re.fullmatch(r"job1: running for \d\.\d s\nbegun\n\[read on with since=6\]", told)
    (tmp_path / "go").write_text("\n")
    told = desk.ok("job_wait", job="job1", since=6)
    assert re.fullmatch(r"job1: exited with code 3, after \d\.\d s\nended\n\[read on with since=12\]", told)
    assert "begun\nended" in desk.ok("job_output", job="job1")
    assert "(nothing new)" in desk.ok("job_output", job="job1", since=12)
    assert re.fullmatch(r"job1  exited with code 3, after \d\.\d s  echo begun; .*", desk.ok("job_list"))


def test_stopping_a_job_ends_all_that_it_started(desk: ToolBench, tmp_path: Path) -> None:
    desk.ok("job_start", command=f"echo hi; {FAMILY}")
    family = pids(tmp_path, "shell", "child", "daemon")
    assert re.match(r"job1: stopped, after \d\.\d s\nhi\n", desk.ok("job_stop", job="job1"))
    assert not any(alive(pid) for pid in family)
    assert desk.ok("job_stop", job="job1").startswith("job1: stopped")


@pytest.mark.slow
def test_a_job_that_will_not_end_is_killed(desk: ToolBench, tmp_path: Path) -> None:
    desk.ok("job_start", command="trap '' TERM; echo $$ > shell; while :; do sleep 0.05; done")
    (shell,) = pids(tmp_path, "shell")
    desk.ok("job_stop", job="job1")
    assert not alive(shell)


def test_the_time_limit_of_a_job_needs_no_polling(desk: ToolBench, tmp_path: Path) -> None:
    """Those that had begun by then are gone, and those that had not never began."""
    desk.ok("job_start", command=FAMILY, timeout=0.5)
    assert "job1: ended after its limit of 0.5 s" in desk.ok("job_wait", job="job1", timeout=PATIENCE)
    files = [tmp_path / name for name in ("shell", "child", "daemon")]
    written = [file.read_text() for file in files if file.exists()]
    assert not any(alive(int(pid)) for pid in written if pid)


def test_waiting_can_be_interrupted_and_ends_in_time(desk: ToolBench) -> None:
    desk.ok("job_start", command="sleep 600")
    assert desk.ok("job_wait", job="job1", timeout=0.2).startswith("job1: running")

    async def interrupted() -> ToolOutcome:
        stop = Interrupt()
        asyncio.get_running_loop().call_later(0.2, stop.set)
        return await desk.runner.run(RunTool("1", "job_wait", {"job": "job1"}, 2 * PATIENCE), stop)

    assert asyncio.run(interrupted()).text.startswith("job1: running")
    # a text that arrives in two pieces is found
    desk.ok("job_start", command="printf lis; sleep 0.3; printf 'tening\\n'; sleep 600")
    outcome = desk.use("job_wait", job="job2", text="listening", timeout=PATIENCE)
    assert "listening" in outcome.text
    assert outcome.seconds < PATIENCE


@pytest.mark.slow
def test_only_so_many_jobs_at_once(desk: ToolBench) -> None:
    for _ in range(MAX_RUNNING):
        desk.ok("job_start", command="sleep 30")
    assert desk.error("job_start", command="sleep 30").startswith("8 jobs are running (job1, job2,")
    desk.ok("job_stop", job="job3")
    assert desk.ok("job_start", command="sleep 30") == "Started job9."


def test_jobs_that_cannot_be(desk: ToolBench) -> None:
    assert desk.error("job_output", job="job7") == "There is no job 'job7'. There are: none."
    assert "no approval can change that" in desk.error("job_start", command="X=/; rm -rf $X")
    assert "outside the working directory" in desk.error("job_start", command="true", directory="..")
    assert "no such directory" in desk.error("job_start", command="true", directory="nope")
    assert "NUL" in desk.error("job_start", command="echo \0")


def test_starting_needs_a_yes_and_looking_does_not(tmp_path: Path) -> None:
    specs = [tool.spec for tool in toolset("terminal", tmp_path)]
    contracts = {spec.name: (spec.concurrency, spec.effect, spec.approval) for spec in specs}
    starts = dict.fromkeys(("terminal", "job_start"), ("serial", "unsafe", "ask"))
    looks = dict.fromkeys(("job_list", "job_output", "job_wait"), ("parallel", "pure", "never"))
    assert contracts == {**starts, **looks, "job_stop": ("serial", "idempotent", "never")}


def test_much_output_keeps_the_newest_within_bounds(tmp_path: Path, desk: ToolBench) -> None:
    jobs = Jobs(log_bytes=100_000)
    job = jobs.start("yes 0123456789abcdef | head -c 5000000; echo; echo the end", tmp_path, 60)
    until(lambda: not job.running)
    assert job.read(None, 8).data == b"the end\n"
    whole = job.read(0, 10_000_000)
    assert whole.total == 5_000_009
    assert 50_000 <= len(whole.data) <= 100_000
    assert whole.end == whole.total
    assert sum(file.stat().st_size for file in job.folder.iterdir()) <= 100_000
    assert job.read(whole.total - 20, 12).data == whole.data[-20:-8]
    jobs.close()
    # what is lost is said
    desk.ok("job_start", command="yes 0123456789abcde | head -c 6000000")
    desk.ok("job_wait", job="job1")
    told = desk.ok("job_output", job="job1", since=0)
    lost = re.search(r"\[([\d,]+) bytes before this are no longer kept\]", told)
    assert lost is not None
    assert int(lost[1].replace(",", "")) >= 2_000_000
    assert "more bytes are there]" in told
    assert "bytes before this]" in desk.ok("job_output", job="job1")


SEQUENCES = (
    (b"\x1b[31mred\x1b[0m", "red"), (b"\x1b]0;evil title\x07text", "text"),
    (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"), (b"\x1b]52;c;ZXZpbA==\x07", ""),
    (b"\x1bP1$rq\x1b\\x\x1b_app\x1b\\y\x1b^pm\x1b\\z", "xyz"), (b"\xc2\x9b2Jx\xc2\x9dtitle\xc2\x9cy", "xy"),
    (b"\x1b[2J\x1b[H\x1b[?25lx\x1bcy\x1b(Bz", "xyz"), (b"10%\r50%\r100%\n", "100%\n"), (b"100%\r", "100%"),
    (b"a\r\nb\r\n", "a\nb\n"), (b"N\x08NA\x08A", "NA"), (b"a\x00b\x07c\x7f\td", "abc\td"),
    ("a\u202eb\u2066c".encode(), "abc"), (b"\x1b\x1b[31m[31mx", "[31mx"), (b"\x1b]never closed", ""),
    (b"\xff\xfe", "\ufffd\ufffd"),
)  # fmt: skip


def test_control_sequences_are_taken_out() -> None:
    for written, read in SEQUENCES:
        assert readable(written) == read, (written, read)


@pytest.mark.slow
def test_closing_ends_all_and_takes_the_output_away(tmp_path: Path, jobs: Jobs) -> None:
    stubborn = MAX_RUNNING - 1
    for number in range(stubborn):
        jobs.start(f"trap '' TERM; echo $$ > stubborn{number}; while :; do sleep 0.05; done", tmp_path, 60)
    job = jobs.start(FAMILY, tmp_path, 60)
    family = pids(tmp_path, "shell", "child", "daemon", *(f"stubborn{number}" for number in range(stubborn)))
    started = time.monotonic()
    jobs.close()
    together = time.monotonic() - started
    assert together < stubborn * TERM_GRACE, "one after the other takes this long"
    assert not any(alive(pid) for pid in family)
    assert not job.folder.parent.exists()
    jobs.close()
    assert jobs.start("true", tmp_path, 5).id == f"job{MAX_RUNNING + 1}"


@pytest.mark.slow
def test_an_agent_that_is_forgotten_leaves_nothing_running(tmp_path: Path) -> None:
    jobs = Jobs()
    jobs.start(FAMILY, tmp_path, 60)
    family = pids(tmp_path, "shell", "child", "daemon")
    del jobs
    gc.collect()
    assert not any(alive(pid) for pid in family)


@pytest.mark.parametrize(
    "how", ["kill", *(pytest.param(how, marks=pytest.mark.slow) for how in ("exit", "supervisor"))]
)
def test_jobs_do_not_outlive_their_process(tmp_path: Path, how: str) -> None:
    program = (
        f"import sys, time, pathlib; sys.path.insert(0, {str(ROOT)!r})\n"
        "from fsm_agent.toolsets.terminal import Jobs\n"
        "jobs = Jobs()\n"
        f"job = jobs.start({FAMILY!r}, pathlib.Path('.'), 60)\n"
        "pathlib.Path('folder').write_text(str(job.folder)); print(job.process.pid, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    agent = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, text=True, **pipes)
    assert agent.stdin is not None
    assert agent.stdout is not None
    supervisor = int(agent.stdout.readline())
    family = pids(tmp_path, "shell", "child", "daemon")
    if how == "kill":
        agent.kill()
    elif how == "supervisor":
        os.kill(supervisor, 9)
        until(lambda: not alive(family[0]))
        agent.kill()
        os.killpg(family[0], 9)
        os.kill(family[2], 9)  # no process is left that could end what had left the group
    agent.communicate()
    until(lambda: not any(alive(pid) for pid in family))
    folder = Path((tmp_path / "folder").read_text()).parent
    if how == "supervisor":
        shutil.rmtree(folder)
    until(lambda: not folder.exists())


def test_a_job_whose_supervisor_was_killed_is_reported(tmp_path: Path, jobs: Jobs) -> None:
    job = jobs.start("sleep 60", tmp_path, 60)
    job.process.kill()
    until(lambda: not job.running)
    assert "the process that watches over it was killed" in job.state()


def test_old_jobs_are_forgotten(tmp_path: Path) -> None:
    jobs = Jobs(max_kept=3)
    kept = jobs.start("sleep 60", tmp_path, 60)
    for _ in range(4):
        job = jobs.start("true", tmp_path, 60)
        job.process.wait()
    assert [job.id for job in jobs.all()] == ["job1", "job4", "job5"]
    assert jobs.job(kept.id).running
    assert sorted(folder.name for folder in kept.folder.parent.iterdir()) == ["job1", "job4", "job5"]
    with pytest.raises(ToolFailure, match="There is no job 'job2'"):
        jobs.job("job2")
    jobs.close()
