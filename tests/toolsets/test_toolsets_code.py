"""execute_code: what a program can do, and what it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsm_agent.conversation.effects import ToolOutcome
from fsm_agent.toolsets import toolset
from tests.helpers.toolbench import ToolBench
from tests.helpers.waiting import PATIENCE

CODE = ToolBench(toolset("code"))


def run(code: str, timeout: float = PATIENCE) -> ToolOutcome:
    return CODE.use("execute_code", code=code, timeout=timeout)


def ok(code: str, timeout: float = PATIENCE) -> str:
    return CODE.ok("execute_code", code=code, timeout=timeout)


def test_its_contract() -> None:
    (made,) = toolset("code")
    spec = made.spec
    contract = (spec.name, spec.effect, spec.approval, spec.concurrency)
    assert contract == ("execute_code", "unsafe", "ask", "serial")


def test_it_prints() -> None:
    assert ok("print(6 * 7)") == "exit code 0\n42"
    assert (
        ok("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)") == "exit code 3\nout\nerr"
    )
    assert ok("6 * 7") == "exit code 0\n(no output)"
    assert ok("import json, statistics; print(statistics.mean([1, 2]))") == "exit code 0\n1.5"
    assert ok("print(input())").endswith("EOFError: EOF when reading a line")
    assert 'main.py", line 1' in ok("1/0")
    assert "SyntaxError" in ok("def")
    assert run("").status == "error"


def test_nothing_of_the_agent_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers"))
    monkeypatch.setenv("PYTHONSTARTUP", "/nowhere")
    assert ok("import os; print(sorted(os.environ))") == "exit code 0\n['HOME', 'LANG', 'PATH', 'TMPDIR']"
    assert "ModuleNotFoundError" in ok("import web_server")
    descriptors = "import os; print([fd for fd in range(3, 100) if os.path.exists(f'/proc/self/fd/{fd}')])"
    assert ok(descriptors) == "exit code 0\n[]"


def test_its_folder_is_its_own_and_thrown_away() -> None:
    program = (
        "import os; open('f', 'w').write('x'); print(os.getcwd()); print(sorted(os.listdir('.')));"
        " print(os.path.expanduser('~'))"
    )
    status, folder, listed, home = ok(program).split("\n")
    assert (status, listed, home) == ("exit code 0", "['f', 'main.py']", folder)
    assert not Path(folder).exists()
    assert ok("import os; print(os.listdir('.'))") == "exit code 0\n['main.py']"
    # what it starts ends with it
    text = ok("import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)")
    assert not Path(f"/proc/{int(text.split()[-1])}").exists()
    # output is limited and plain
    text = ok("print('start'); print('x' * 300_000); print('\\x1b[31mend\\x1b]0;t\\x07')")
    assert len(text) < 41_000
    assert "bytes left out" in text
    assert text.endswith("\nend")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 'a' * (2 << 30)", "MemoryError"),
        ("open('f', 'wb').write(b'x' * 60_000_000)", "File too large"),
        ("files = [open('/dev/null') for _ in range(500)]", "Too many open files"),
    ],
)
def test_limits(code: str, words: str) -> None:
    assert words in ok(code)


@pytest.mark.skipif(os.geteuid() == 0, reason="the system does not count the processes of root")
def test_processes_are_limited() -> None:
    assert "Resource temporarily unavailable" in ok(
        "import subprocess\nfor _ in range(200): subprocess.Popen(['sleep', '5'])", timeout=10
    )


def test_time_is_limited(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"print('begun', flush=True)\nopen({str(begun)!r}, 'w')\nwhile True: pass"
    outcome = CODE.stopped("execute_code", begun.exists, after=60, code=code, timeout=60)
    assert (outcome.status, outcome.text) == ("error", "Killed after 60 seconds. Output so far:\nbegun")


def test_killing_its_watcher_frees_nothing() -> None:
    outcome = run("import os, time; os.kill(os.getppid(), 9); time.sleep(600)")
    assert outcome.status == "error"
    assert "was killed" in outcome.text
