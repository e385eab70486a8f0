"""Commands in a sandbox: the contract of a command holds in every backend, and each backend confines what it
should.

Docker and Podman run against a recorded command line (``tests.helpers.engine``), because a build server has
no engine: these tests show the engine's arguments, and that the program is ended and the container removed,
not what a container confines. Bubblewrap is the real thing, where it works."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.approvals.question import Question
from fsm_agent.approvals.rules import Grants
from fsm_agent.approvals.service import Approvals
from fsm_agent.cli.doctor import doctor
from fsm_agent.conversation.effects import Approval, AskApproval, RunTool, ToolOutcome, ToolSpec
from fsm_agent.errors import ConfigError
from fsm_agent.providers.scripted import FakeClock
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.rewind import AGENT_SETTINGS
from fsm_agent.settings import SandboxSettings, Settings
from fsm_agent.support.threads import Interrupt
from fsm_agent.testing import ScriptedModel, call, text, tools
from fsm_agent.tools import Tool, ToolRunner
from fsm_agent.tools.decorator import Confinement
from fsm_agent.toolsets import toolsets
from fsm_agent.toolsets.process import supervisor_words
from fsm_agent.toolsets.process_supervisor import SupervisorOrder
from fsm_agent.toolsets.sandbox import Boundary, homes, sandbox_of, usable_sandbox
from fsm_agent.toolsets.terminal import Jobs
from tests.helpers.engine import RecordedEngine
from tests.helpers.leaping import LeapingLoop
from tests.helpers.waiting import PATIENCE, until, until_so

ROOT = Path(__file__).parents[2]


def no_bubblewrap() -> str:
    """Why bubblewrap cannot run here; empty when it can. Asked of ``bwrap`` itself, so that a mistake of ours does
    not skip the tests that would find it."""
    words = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{error}"
    return done.stderr.strip() if done.returncode else ""


class Scene:
    """A working directory, with a home and a file beside it that must stay private."""

    def __init__(self, folder: Path, backend: str, engine: RecordedEngine) -> None:
        self.folder, self.backend, self.engine = folder, backend, engine
        self.work, self.home, self.outside = folder / "work", folder / "user", folder / "outside.txt"
        self.agent_home = self.home / "agent"
        for place in (self.work, self.home / ".ssh", self.agent_home):
            place.mkdir(parents=True)
        (self.home / ".ssh" / "id_ed25519").write_text("SECRET of the user")
        (self.agent_home / "config.toml").write_text("# SECRET of the agent")
        self.outside.write_text("SECRET of the user")
        self.mark = f"31{uuid.uuid4().int % 10**12}"
        self.stay = f"sleep {self.mark}"
        self.made: list[ToolRunner] = []

    def runner(self, **rules: Any) -> ToolRunner:
        settings = SandboxSettings(backend=self.backend, **rules)
        made = toolsets(["terminal", "code"], self.work, home=self.agent_home, sandbox=settings)
        self.made.append(ToolRunner(made, clock=FakeClock(), poll=0.02))
        return self.made[-1]

    def use(self, name: str, /, runner: ToolRunner | None = None, **arguments: Any) -> ToolOutcome:
        used = runner or (self.made[0] if self.made else self.runner())
        return asyncio.run(used.run(RunTool("1", name, arguments, 2 * PATIENCE), Interrupt()))

    def run(self, command: str, /, runner: ToolRunner | None = None, **arguments: Any) -> str:
        outcome = self.use("terminal", runner, command=command, **arguments)
        assert outcome.status == "ok", outcome
        return outcome.text

    def late(self, name: str, /, **arguments: Any) -> str:
        """What a call says whose time is up as soon as it has made the file ``begun``."""
        loop, runner, begun = LeapingLoop(), self.runner(), self.work / "begun"

        async def leapt() -> ToolOutcome:
            request = RunTool("1", name, {**arguments, "timeout": 60}, 2 * PATIENCE)
            running = asyncio.ensure_future(runner.run(request, Interrupt()))
            await until_so(begun.exists)
            loop.leap(60)
            return await running

        with asyncio.Runner(loop_factory=lambda: loop) as made:
            outcome = made.run(leapt())
        assert outcome.status == "error", outcome
        return outcome.text

    def left(self) -> list[int]:
        """Processes on this machine, inside or outside, that carry the mark of this test."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if self.mark.encode() in words:
                    found.append(int(entry.name))
        return found


Opened = Callable[[str], Scene]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedEngine:
    made = RecordedEngine(tmp_path / "engine")
    monkeypatch.setenv("PATH", made.path)
    return made


@pytest.fixture
def opened(tmp_path: Path, engine: RecordedEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    made: list[Scene] = []

    def scene(backend: str) -> Scene:
        if backend == "bubblewrap" and (reason := no_bubblewrap()):
            pytest.skip(f"bubblewrap does not work here: {reason}")
        made.append(Scene(tmp_path, backend, engine))
        monkeypatch.setenv("HOME", str(made[-1].home))
        return made[-1]

    yield scene
    for one in made:
        for runner in one.made:
            runner.close()


@pytest.fixture(
    params=[
        "bubblewrap",
        pytest.param("local", marks=pytest.mark.slow),  # tests/toolsets has it in the fast suite
        pytest.param("docker", marks=pytest.mark.slow),
        pytest.param("podman", marks=pytest.mark.slow),
    ]
)
def scene(request: pytest.FixtureRequest, opened: Opened) -> Scene:
    """Every backend."""
    return opened(request.param)


@pytest.fixture
def walled(opened: Opened) -> Scene:
    """The backend that is tried in earnest."""
    return opened("bubblewrap")


# -------------------------------------------------------------------------------------------------------- the contract


def test_a_command_runs_in_its_folder_without_input_and_tells_its_code(scene: Scene) -> None:
    (scene.work / "sub").mkdir()
    command = "pwd; read line || echo nothing to read; echo out; echo err >&2; echo made > made; exit 3"
    told = scene.run(command, directory="sub")
    assert told == f"exit code 3\n{scene.work / 'sub'}\nnothing to read\nout\nerr"
    assert (scene.work / "sub" / "made").read_text() == "made\n"


def test_much_output_is_cut(scene: Scene) -> None:
    told = scene.run("head -c 300000 /dev/zero | tr '\\0' x; echo; echo the end")
    assert len(told) < 100_000
    assert told.endswith("the end")


@pytest.mark.parametrize(
    ("trap", "says"),
    [
        ("echo in order; exit 5", r"Killed after 60 seconds, .*\nearly\n(Terminated\n)?in order"),
        ("", "Killed after 60 seconds.*"),
    ],
    ids=["puts things in order", "stubborn"],
)
def test_a_command_that_takes_too_long_is_killed(scene: Scene, trap: str, says: str) -> None:
    waits = "echo early; echo > begun; while :; do sleep 0.02; done"
    told = scene.late("terminal", command=f"trap '{trap}' TERM; {scene.stay} & {waits}")
    assert re.fullmatch(says, told, re.DOTALL)
    until(lambda: not scene.left())


async def test_an_interrupt_ends_it(scene: Scene) -> None:
    runner = scene.runner()
    stop = Interrupt()
    request = RunTool("1", "terminal", {"command": f"echo > begun; {scene.stay}"}, 2 * PATIENCE)
    running = asyncio.ensure_future(runner.run(request, stop))
    await asyncio.to_thread(until, (scene.work / "begun").exists)
    stop.set()
    ended: Any = await running
    assert ended.status == "unknown"
    until(lambda: not scene.left())


def test_what_a_command_leaves_behind_has_a_moment_and_is_ended(opened: Opened) -> None:
    scene = opened("bubblewrap")
    assert scene.run("echo quick > >(sleep 0.1; cat > slowly)") == "exit code 0\n(no output)"
    assert (scene.work / "slowly").read_text() == "quick\n"
    told = scene.run(f"{scene.stay} & setsid {scene.stay} & echo done")
    assert told == "exit code 0\ndone\n[What it left running in the background was ended with it.]"
    assert not scene.left()


def test_jobs_run_are_read_and_are_stopped(scene: Scene) -> None:
    runner = scene.runner()
    assert scene.use("job_start", runner, command=f"echo listening; {scene.stay}").text == "Started job1."
    assert "listening" in scene.use("job_wait", runner, job="job1", text="listening", timeout=PATIENCE).text
    until(lambda: bool(scene.left()))
    assert "stopped, after" in scene.use("job_stop", runner, job="job1").text
    until(lambda: not scene.left())
    scene.use("job_start", runner, command=f"echo again; {scene.stay}")
    scene.use("job_wait", runner, job="job2", text="again", timeout=PATIENCE)
    runner.close()
    until(lambda: not scene.left())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["terminal", "job"])
def test_nothing_outlives_an_agent_that_is_killed(scene: Scene, what: str) -> None:
    begin = (
        "asyncio.run(run_shell(command, work, 600, place))"
        if what == "terminal"
        else "jobs = Jobs(); jobs.start(command, work, 600, place); time.sleep(600)"
    )
    program = (
        "import asyncio, sys, time, pathlib\n"
        "from fsm_agent.settings import SandboxSettings\n"
        "from fsm_agent.toolsets.terminal import Jobs\n"
        "from fsm_agent.toolsets.sandbox import sandbox_of\n"
        "from fsm_agent.toolsets.terminal import run_shell\n"
        f"work, command = pathlib.Path({str(scene.work)!r}), 'echo > begun; {scene.stay} & {scene.stay}'\n"
        f"place = sandbox_of(SandboxSettings(backend={scene.backend!r}), work)\n{begin}\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    until((scene.work / "begun").exists)
    agent.kill()
    agent.wait()
    until(lambda: not scene.left())


def test_nothing_outlives_an_agent_that_is_killed_while_a_command_starts(opened: Opened) -> None:
    scene = opened("local")
    near, far = socket.socketpair()
    near.close()
    order = SupervisorOrder(["sh", "-c", f"{scene.stay} & {scene.stay}"], str(scene.work))
    with far:
        watcher = subprocess.Popen(supervisor_words(order, far), pass_fds=[far.fileno()])
    assert watcher.wait(PATIENCE) == -signal.SIGTERM, "it ended the command"
    until(lambda: not scene.left())


def test_nothing_outlives_the_process_that_watches_over_it(walled: Scene) -> None:
    jobs = Jobs()
    place = sandbox_of(SandboxSettings(backend="bubblewrap"), walled.work)
    job = jobs.start(f"echo > begun; setsid {walled.stay} & {walled.stay}", walled.work, 600, place)
    until((walled.work / "begun").exists)
    job.process.kill()
    until(lambda: not walled.left())
    jobs.close()


def test_python_runs_in_a_folder_of_its_own(scene: Scene) -> None:
    program = "import os; print(6 * 7, sorted(os.listdir('.'))); open('f', 'w').write('x')"
    assert scene.use("execute_code", code=program).text == "exit code 0\n42 ['main.py']"


def test_no_key_is_in_the_environment(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-private")
    monkeypatch.setenv("FSM_AGENT_MODEL", "offline:sk-private")
    if scene.backend != "local":
        monkeypatch.setenv("DATABASE_PASSWORD", "sk-private")
    told = scene.run("env; cat /proc/[0-9]*/environ 2>&1 | tr '\\0' '\\n' | grep OPENAI_API_KEY=sk | wc -l")
    assert "sk-private" not in told
    if scene.backend == "bubblewrap":
        assert told.endswith("\n0")


# ---------------------------------------------------------------------- the arguments of a container engine


@pytest.mark.parametrize("backend", ["docker", pytest.param("podman", marks=pytest.mark.slow)])
def test_what_the_engine_is_told(opened: Opened, backend: str) -> None:
    scene = opened(backend)
    data = scene.folder / "a, b"
    data.mkdir()
    (scene.work / ".git").mkdir()
    scene.run("true", scene.runner(readable=(str(data),), image="debian:12"))
    (words,) = scene.engine.calls("run")
    asked = dict(itertools.pairwise(words))
    assert (asked["--network"], asked["--cap-drop"], asked["--pull"]) == ("none", "ALL", "never")
    assert asked["--user"] == f"{os.getuid()}:{os.getgid()}"
    assert "no-new-privileges" in words
    assert {"--rm", "--init"} <= set(words)
    mounts = [value for name, value in itertools.pairwise(words) if name == "--mount"]
    assert f"type=bind,source={scene.work},target={scene.work}" in mounts
    assert f"type=bind,source={scene.work}/.git,target={scene.work}/.git,readonly" in mounts
    assert f'type=bind,"source={data}","target={data}",readonly' in mounts
    assert not any(str(scene.home) in mount for mount in mounts)
    assert scene.engine.calls("rm") == [["rm", "--force", asked["--name"]]]
    scene.run("true", scene.runner(network=True))
    assert "bridge" in scene.engine.calls("run")[-1]
    scene.use("execute_code", code="pass")
    assert "cpu=31" in scene.engine.calls("run")[-1]


# ---------------------------------------------------------------------------------------------------- attacks from inside


def test_nothing_is_written_outside(walled: Scene) -> None:
    (walled.work / "link").symlink_to(walled.folder)
    walled.run(
        f"echo owned > {walled.outside}; echo owned > link/outside.txt; echo owned > ../outside.txt;"
        " echo owned > /etc/fsm-agent-owned; echo owned > /usr/fsm-agent-owned; rm -f /etc/hostname;"
        f" ln -s {walled.outside} here; echo owned > here; ln {walled.outside} hard; echo owned > hard"
    )
    told = walled.run("touch /new /var/new /etc/new /opt/new 2>&1 | grep -c 'Read-only file system'")
    assert told == "exit code 0\n4"
    assert walled.outside.read_text() == "SECRET of the user"
    assert not Path("/etc/fsm-agent-owned").exists()
    assert not Path("/usr/fsm-agent-owned").exists()
    assert sorted(path.name for path in walled.folder.iterdir()) == ["engine", "outside.txt", "user", "work"]


def test_homes_and_other_folders_are_not_there(walled: Scene) -> None:
    (walled.work / "key").symlink_to(walled.home / ".ssh" / "id_ed25519")
    told = walled.run(
        f"cat key ~/.ssh/* {walled.agent_home}/* {walled.outside} ../outside.txt; ls -A ~ {walled.folder};"
        f" cat /proc/1/root{walled.outside} /proc/*/cwd/../outside.txt; ls /home /root /run /mnt /media"
    )
    assert "SECRET" not in told
    prefixes = (sys.prefix, os.path.realpath(sys.base_prefix))
    pythons = " ".join(f"-not -path '{prefix}/*'" for prefix in prefixes)
    for home in homes():
        assert walled.run(f"find {home} -type f {pythons}") == "exit code 0\n(no output)"


def test_the_home_is_a_scratch_folder(walled: Scene) -> None:
    assert walled.run("echo kept > ~/file && cat ~/file") == "exit code 0\nkept"
    assert not (walled.home / "file").exists()
    assert "kept" not in walled.run("cat ~/file")
    assert Boundary(SandboxSettings(), walled.work).files(walled.work)[walled.home] == "empty"


def test_the_home_of_an_agent_in_the_working_directory_is_hidden(walled: Scene) -> None:
    walled.agent_home = walled.work / ".agent"
    walled.agent_home.mkdir()
    (walled.agent_home / "config.toml").write_text("SECRET")
    assert walled.run("ls -A .agent; mv .agent moved; cat */config.toml").startswith("exit code 1")
    assert (walled.agent_home / "config.toml").read_text() == "SECRET"


def test_other_processes_are_not_there(walled: Scene) -> None:
    other = subprocess.Popen(["sleep", walled.mark])
    code = f"import os; print(len([n for n in os.listdir('/proc') if n.isdigit()])); os.kill({other.pid}, 9)"
    told = walled.use("execute_code", code=code).text
    assert int(told.split("\n")[1]) < 10
    assert "No such process" in told
    walled.use("execute_code", code="import os; os.kill(-1, 9)")
    assert other.poll() is None
    other.kill()
    other.wait()


def test_the_switches_of_the_machine_are_out_of_reach(walled: Scene) -> None:
    """Also for root without capabilities, to whom the files in ``/proc`` belong: ``core_pattern`` names a program
    that the kernel runs outside. Each is written what it says already."""
    turn = "for f in /proc/sys/vm/dirty_ratio /proc/sys/kernel/core_pattern; do v=$(cat $f); echo $v > $f && echo turned; done"
    assert "turned" not in walled.run(
        f"({turn}) 2>&1; find /proc/sys /proc/sysrq-trigger -writable 2>/dev/null | sed s/^/turned/"
    )


def test_the_network_is_off_unless_it_is_allowed(walled: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as caller:
                caller.sendall(b"reached")

        answering = threading.Thread(target=answer)
        answering.start()
        port = server.getsockname()[1]
        ask = f"exec 3<>/dev/tcp/127.0.0.1/{port} && head -c 7 <&3"
        assert "reached" not in walled.run(ask)
        assert "reached" in walled.run(ask, walled.runner(network=True))
        answering.join()


def test_sockets_of_programs_outside_are_out_of_reach(walled: Scene) -> None:
    hidden, abstract = walled.folder / "socket", f"\0{walled.mark}"
    ask = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect({!r})"
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        for server, address in ((one, str(hidden)), (other, abstract)):
            server.bind(address)
            server.listen()
            told = walled.use("execute_code", code=ask.format(address)).text
            assert told.startswith("exit code 1"), told


def test_nothing_can_be_typed_into_a_terminal(walled: Scene) -> None:
    program = (
        "import fcntl, glob, os, termios\n"
        "def push(descriptor):\n"
        "    try:\n"
        "        fcntl.ioctl(descriptor, termios.TIOCSCTTY, 1)\n"
        "    except OSError:\n"
        "        pass\n"
        "    fcntl.ioctl(descriptor, termios.TIOCSTI, b'x')\n"
        "    print('pushed')\n"
        "for place in [0, 1, 2, '/dev/tty', '/dev/console', *glob.glob('/dev/pts/[0-9]*')]:\n"
        "    try:\n"
        "        push(place if isinstance(place, int) else os.open(place, os.O_RDWR))\n"
        "    except OSError as error:\n"
        "        print(error.strerror)\n"
    )
    leader, follower = os.openpty()
    try:
        assert "pushed" not in walled.use("execute_code", code=program).text
        assert not Path(f"{walled.work}/pts").exists()
        assert os.ttyname(follower) not in walled.run("ls /dev/pts/* 2>/dev/null; tty; true")
    finally:
        os.close(leader)
        os.close(follower)


ACT_LATER = (
    ".git/hooks/pre-commit", ".git/config", ".git/commondir", ".envrc", "AGENTS.md", ".vscode/tasks.json",
    ".github/workflows/ci.yml",
)  # fmt: skip


def test_what_runs_or_instructs_later_is_not_changed(walled: Scene) -> None:
    for name in ACT_LATER:
        path = walled.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name != ".git/commondir":
            path.write_text("as it was")
    tried = " ".join(
        f"echo owned > {name}; rm -rf {name}; mv {name} x; cp /bin/sh {name};" for name in ACT_LATER
    )
    walled.run(
        f"{tried} mv .git .old; mkdir .git; mv .github/workflows .w; rm -rf .git .github .vscode;"
        " unshare -Urm sh -c 'umount .git; umount -l .envrc; mount -o remount,rw .git; echo owned > .git/config; echo owned > .envrc';"
        " git config core.fsmonitor owned; true"
    )
    for name in ACT_LATER:
        path = walled.work / name
        assert path.read_text() == "as it was" if name != ".git/commondir" else not path.exists(), name


def test_what_the_settings_allow_is_there(walled: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT_FLAG", "on")
    (walled.work / ".git").mkdir()
    more = walled.folder / "cache"
    more.mkdir()
    named: Any = {"readable": (str(walled.outside),), "writable": (str(more), ".git")}
    writes = f"echo x >> {walled.outside}; echo x > {more}/f; echo x > .git/f"
    tried = f"cat {walled.outside}; {writes}; echo $PROJECT_FLAG"
    told = walled.run(tried, walled.runner(environment=("PROJECT_FLAG",), **named))
    assert "SECRET of the user" in told
    assert told.endswith("\non")
    assert walled.outside.read_text() == "SECRET of the user"
    assert (more / "f").read_text() == (walled.work / ".git" / "f").read_text() == "x\n"


def test_a_python_in_the_working_directory_is_not_mounted_again(walled: Scene) -> None:
    """Its folder may be a link there, on which nothing can be mounted."""
    real, link = walled.folder / "python", walled.work / ".venv"
    real.mkdir()
    link.symlink_to(real)
    files = Boundary(SandboxSettings(), walled.work).files(walled.work, [link, real])
    assert link not in files
    assert files[real] == "read"


def test_a_link_does_not_show_more_than_the_settings_name(walled: Scene) -> None:
    (walled.work / "data").mkdir()
    runner = walled.runner(readable=("data",))
    walled.run("true", runner)
    walled.run(f"rmdir data; ln -s {walled.home}/.ssh data", walled.runner())
    outcome = walled.use("terminal", runner, command="cat data/*")
    assert outcome.status == "error"
    assert "leads out of the working directory by a link" in outcome.text
    (walled.work / ".envrc").symlink_to(walled.outside)
    assert "SECRET" not in walled.run("cat .envrc", walled.made[-1])


# ------------------------------------------------------------------------------------- a sandbox that cannot be had is said


def refusal(folder: Path, **rules: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        usable_sandbox(SandboxSettings(**rules), folder)
    line = str(raised.value)
    assert "\n" not in line
    return line


def test_a_backend_that_does_not_work_is_refused_before_the_first_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for backend, todo in (
        ("bubblewrap", "apt install bubblewrap"),
        ("docker", "install docker"),
        ("podman", "install podman"),
    ):
        assert todo in refusal(tmp_path, backend=backend)
        settings = {"sandbox": {"backend": backend}}
        with pytest.raises(ConfigError, match=r"sandbox\.backend does not work here; given: "):
            Agent(ScriptedModel([]), workdir=tmp_path, home=tmp_path / "home", settings=settings)
    for name, says in (
        ("bwrap", "setting up uid map: Permission denied"),
        ("docker", "Cannot connect to the Docker daemon"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}' >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    assert "Permission denied" in refusal(tmp_path, backend="bubblewrap")
    docker = refusal(tmp_path, backend="docker")
    assert "Cannot connect to the Docker daemon; allowed: start the engine" in docker


def test_an_image_that_is_not_there_and_paths_that_cannot_be(opened: Opened, engine: RecordedEngine) -> None:
    scene = opened("docker")
    assert "docker pull missing" in refusal(scene.work, backend="docker", image="missing")
    assert "sandbox.readable" in refusal(scene.work, backend="docker", readable=("nowhere",))
    assert "sandbox.writable" in refusal(scene.work, backend="docker", writable=("~/nowhere",))
    assert "cannot hide the home directory" in refusal(scene.home, backend="docker")
    assert "cannot hide the home directory" in refusal(scene.folder, backend="docker")
    with pytest.raises(ConfigError, match=r"sandbox\.image is out of range"):
        Settings.of({"sandbox": {"image": "--privileged"}})


def test_the_doctor_says_which_backends_work(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = opened("docker")
    monkeypatch.chdir(scene.work)
    (scene.folder / "engine" / "podman").write_text("#!/bin/sh\necho no engine answers >&2; exit 1\n")
    monkeypatch.setenv("FSM_AGENT_SANDBOX__BACKEND", "docker")
    doctor(str(scene.agent_home))
    line = next(line for line in capsys.readouterr().out.splitlines() if "commands run in:" in line)
    assert line.startswith("ok       sandbox        commands run in: docker; bubblewrap ")
    assert "docker works, podman does not work (no engine answers)" in line
    monkeypatch.setenv("FSM_AGENT_SANDBOX__BACKEND", "podman")
    assert doctor(str(scene.agent_home)) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "commands run in:" in line)
    assert line.startswith("problem  sandbox ")
    assert line.endswith("; start the engine of podman, or choose another sandbox.backend")


# ---------------------------------------------------------------------------------------------- who is asked, and about what


def played(
    scene: Scene,
    name: str,
    arguments: Mapping[str, Any],
    asked: list[AskApproval] | None = None,
    **options: Any,
) -> str:
    """The result of one call of a turn. ``asked``: what a person was asked, who says yes to everything."""
    settings = {"sandbox": {"backend": scene.backend, "policy": "free"}, **options.pop("settings", {})}
    person = {} if asked is None else {"approval": lambda question: asked.append(question) or True}
    with Agent(
        ScriptedModel([tools(call(name, arguments)), text("done")]), workdir=scene.work, home=scene.agent_home,
        toolsets=["core", "terminal", "code"], settings=settings, callbacks=person, **options,
    ) as agent:  # fmt: skip
        result = agent.run_conversation("go")
    return next(str(row["content"]) for row in result.messages if row["role"] == "tool")


CALLS = [
    ("terminal", {"command": "echo made > made"}),
    ("job_start", {"command": "echo made > made"}),
    ("execute_code", {"code": "print('made')"}),
]


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_inside_needs_no_yes_and_outside_does(walled: Scene, name: str, arguments: dict[str, Any]) -> None:
    assert "denied" not in played(walled, name, arguments)
    if name == "execute_code":
        return
    left = arguments | {"outside": True, "command": f"echo owned > {walled.outside}"}
    for value in (True, "true", 1, "yes", None):
        assert "SECRET" in walled.outside.read_text()
        assert "denied" in played(walled, name, left | {"outside": value}) or value in ("yes", None)
    asked: list[AskApproval] = []
    played(walled, name, left, asked)
    assert [one.where for one in asked] == ["OUTSIDE the sandbox, with all your rights"]
    if name == "terminal":
        assert walled.outside.read_text() == "owned\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"sandbox": {"backend": "bubblewrap"}},
        {"sandbox": {"backend": "bubblewrap", "policy": "free", "network": True}},
        {"sandbox": {"backend": "bubblewrap", "policy": "free", "writable": ["/dev/shm"]}},
        {"sandbox": {"backend": "local", "policy": "free"}}, {"approval": {"policy": {"terminal": "ask"}}},
        {"approval": {"policy": {"terminal": "deny"}}}, {"approval": {"deny": ["terminal(touch*)"]}},
    ],
    ids=str,
)  # fmt: skip
def test_what_else_needs_a_yes(walled: Scene, settings: dict[str, Any]) -> None:
    assert "denied" in played(walled, "terminal", {"command": "touch made"}, settings=settings)
    assert not (walled.work / "made").exists()


YES = ("terminal", "terminal(touch*)", "*")


@pytest.mark.parametrize("approval", [{"policy": {"terminal": "allow"}}, *({"allow": [one]} for one in YES)])
def test_a_yes_to_all_commands_is_none_to_leave(walled: Scene, approval: dict[str, Any]) -> None:
    left = {"command": "touch made", "outside": True}
    assert "denied" in played(walled, "terminal", left, settings={"approval": approval})
    assert "denied" not in played(walled, "terminal", {"command": "true"}, settings={"approval": approval})


def test_hard_lines_stay(walled: Scene) -> None:
    assert "this can never be approved" in played(walled, "terminal", {"command": "rm -rf /"})


def test_a_tool_of_the_same_name_is_not_freed(walled: Scene) -> None:
    ran: list[str] = []
    terminal = tool(approval="ask", name="terminal")(lambda command: ran.append(command))
    assert "denied" in played(walled, "terminal", {"command": "true"}, tools=[terminal])
    assert not ran


def test_the_question_and_the_tool_say_where_it_runs(walled: Scene) -> None:
    asked, settings = list[AskApproval](), {"sandbox": {"backend": "bubblewrap"}}
    played(walled, "terminal", {"command": "true"}, asked, settings=settings)
    (question,) = asked
    assert question.where == "in the sandbox (bubblewrap, no network)"
    shown = Question.of(question).text(100, 40)
    assert "in the sandbox (bubblewrap, no network)" in shown
    here = SandboxSettings(backend="bubblewrap")
    made: Mapping[str, Tool] = {
        one.spec.name: one for one in toolsets(["terminal"], walled.work, sandbox=here)
    }
    assert "in the sandbox (bubblewrap, no network)" in made["terminal"].spec.description
    assert "outside" in made["terminal"].spec.parameters["properties"]
    plain = {one.spec.name: one for one in toolsets(["terminal"], walled.work)}
    assert "sandbox" not in json.dumps(plain["terminal"].spec.parameters) + plain["terminal"].spec.description
    assert plain["terminal"].confinement is None


@pytest.mark.parametrize("value", [True, "false", "False", 0, 1, None, [], ""])
def test_whatever_is_not_plainly_inside_leaves(value: Any) -> None:
    confinement = Confinement("in the sandbox", free=True)
    assert confinement.frees({"command": "x"})
    assert confinement.frees({"command": "x", "outside": False})
    assert not confinement.frees({"command": "x", "outside": value})


def asked_of(approvals: Approvals, **arguments: Any) -> Approval:
    spec = ToolSpec("terminal", "", {}, approval="ask")
    looked = approvals.looked_at((spec,), (), {"terminal": Confinement("in it", free=True)})
    assert looked[0].approval == "ask"
    return asyncio.run(approvals.ask(AskApproval("c1", "terminal", arguments), Interrupt()))


def test_an_imported_turn_asks_in_the_sandbox_too_and_a_child_is_as_free_as_its_parent(
    tmp_path: Path,
) -> None:
    approvals = Approvals(
        Callbacks({}), FakeClock(), Settings().approval, 0.02,
        grants=Grants(lambda: store_for(tmp_path).database), workdir=str(tmp_path),
    )  # fmt: skip
    assert asked_of(approvals, command="true").granted
    assert not asked_of(approvals.for_imported(), command="true").granted
    child = approvals.for_child(Callbacks({}), "a task", ask=False)
    assert asked_of(child, command="true").granted
    assert not asked_of(child, command="true", outside=True).granted


def test_a_stored_turn_cannot_say_where_its_commands_run() -> None:
    assert "sandbox" in AGENT_SETTINGS


# ------------------------------------------------------------------------------------------------------- everyday commands

EVERYDAY = Path(__file__).with_name("everyday_commands.txt").read_text("utf-8").splitlines()
PAGE = ROOT / "docs" / "sandbox.md"
CHANGES_GIT = (
    "git checkout -b feature", "git add -A", 'git add . && git commit -m "Fix the build"',
    'git commit -m "do not rm -rf / in the script"', "git commit --amend --no-edit", "git stash", "git stash pop",
    "git merge main", "git rebase main", "git reset --hard HEAD", "git tag v1.0", "git switch main",
)  # fmt: skip
NEEDS_THE_NETWORK = (
    "git push origin feature", "git pull --rebase", "git fetch --all", "git clone https://example.org/x.git",
    "pip install -r requirements.txt", "npm install", "curl -s https://example.org/api",
    "curl -fsSL https://example.org/install.sh -o install.sh", "wget https://example.org/a.tgz", "ssh host uptime",
    'ssh host "sudo systemctl reboot"', "scp a.txt host:/tmp/", "rsync -a src/ host:src/",
)  # fmt: skip
NEEDS_OTHER_PROCESSES = (
    "docker ps", "docker images", "docker build -t app .", "docker run --rm app", "docker compose up -d",
    "docker logs app", "kubectl get pods", "systemctl status nginx", "kill 1234",
)  # fmt: skip


def test_how_many_everyday_commands_need_no_yes_in_the_sandbox() -> None:
    """The figures of the guide."""
    leaving = {*CHANGES_GIT, *NEEDS_THE_NETWORK, *NEEDS_OTHER_PROCESSES}
    assert leaving < set(EVERYDAY)
    rules = SandboxSettings(backend="bubblewrap", policy="free")
    confinement = Confinement("in the sandbox", free=rules.free)
    assert all(confinement.frees({"command": line}) for line in EVERYDAY)
    told = f"Of {len(EVERYDAY)} everyday commands, {len(EVERYDAY) - len(leaving)} work inside"
    assert told in " ".join(PAGE.read_text("utf-8").split())


def test_git_can_be_looked_at_and_not_changed_inside(walled: Scene) -> None:
    """Those of the list that need no network, tried in a repository where all of them work outside."""
    begin = (
        "git init -qb main . && git config user.name me && git config user.email me@example.org && mkdir -p src"
        " && echo main > src/main.py && git add . && git commit -qm one && echo more >> src/main.py && git add . &&"
        " git commit -qm two && git branch feature-two && git switch -qc side && echo x > side && git add . &&"
        " git commit -qm side && git switch -q main && echo y > file && git add file && git commit -qm file &&"
        " echo z >> file && git stash -q && echo z >> src/main.py"
    )
    environment = {**os.environ, "HOME": str(walled.home)}
    subprocess.run(["bash", "-c", begin], cwd=walled.work, check=True, env=environment)
    left_out = {*NEEDS_THE_NETWORK, "git switch main"}
    lines = [line for line in EVERYDAY if line.startswith("git ") and line not in left_out]
    head: Any = {
        "args": ["git", "rev-parse", "HEAD"], "cwd": walled.work, "capture_output": True, "check": True,
    }  # fmt: skip
    before = subprocess.run(**head).stdout
    tries = "; ".join(f"(set -o pipefail; {line}) > /dev/null 2>&1; echo $?" for line in lines)
    codes = [int(code) for code in walled.run(tries).split("\n")[1:]]
    failed = {line for line, code in zip(lines, codes, strict=True) if code}
    assert failed == {*CHANGES_GIT} - {"git switch main"}
    assert before == subprocess.run(**head).stdout
