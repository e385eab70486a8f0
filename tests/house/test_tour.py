"""A newcomer's first minutes: the commands of the README, word for word, in a fresh clone with a home of its own; and the
wheel, installed as others install it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hatchling.build
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
NEEDS_A_MODEL, NEEDS_MORE = "--model openai", ("acp", "debug", "diagram diff", "worker")
"""Commands that need a key, an editor, a browser, a repository with a history, or a program of one's own."""


def commands() -> list[str]:
    """Every command in a console block of the README, without its remark."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [re.split(r"\s{2,}# ", line)[0].strip() for line in lines]


def clean_environment(home: Path) -> dict[str, str]:
    pip = (f"PIP_{name}" for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "CONFIG_FILE"))
    kept = ("PATH", "LANG", "TMPDIR", *pip)
    own = {"HOME": str(home), "FSM_AGENT_HOME": str(home / "agent")}
    return {**{name: os.environ[name] for name in kept if name in os.environ}, **own}


def run(words: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words, shell=True, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: {done.stdout[-1_000:]}{done.stderr[-3_000:]}"
    return done


def test_the_commands_of_the_readme_work_in_a_fresh_clone(tmp_path: Path) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    shutil.copytree(
        ROOT, clone, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", ".supply", "__pycache__")
    )
    environment = clean_environment(home)
    first = run(commands()[0], clone, environment)
    assert commands()[:2] == ["make demo", "make test"]
    assert "“fallback” was found" in first.stdout
    assert "CallLLM        text           → Finalize" in first.stderr
    assert first.stdout.splitlines()[-1] == "Next: .venv/bin/fsm-agent chat"
    environment["PATH"] = f"{clone / '.venv' / 'bin'}{os.pathsep}{environment['PATH']}"
    tried = 0
    for words in commands()[1:]:
        rest = words.removeprefix("fsm-agent ")
        if not words.startswith("fsm-agent ") or rest.startswith(NEEDS_MORE) or NEEDS_A_MODEL in words:
            continue
        run(words, clone, environment)
        tried += 1
    assert tried >= 7


def test_the_wheel_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``pipx`` and ``uvx`` do: an environment of its own with the wheel and what it needs from the index."""
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    work, environment = tmp_path / "work", clean_environment(tmp_path)
    work.mkdir()
    python = f"{tmp_path}/venv/bin/python"
    run(f"{sys.executable} -m venv {tmp_path}/venv", work, environment)
    run(f"{python} -m pip install -q --disable-pip-version-check --no-compile {wheel}", work, environment)
    answer = run(
        f"{tmp_path}/venv/bin/fsm-agent run -q --model offline:demo 'what is 6*7?'", work, environment
    ).stdout
    assert answer.startswith("6*7 = 42\n")
    listed = run(f"{python} -m fsm_agent examples", work, environment).stdout
    assert "examples/review_loop.py  A table of its own" in listed
    assert "accepted: A machine" in run(f"{python} -m examples.review_loop", work, environment).stdout
    refused = subprocess.run(
        [f"{tmp_path}/venv/bin/fsm-agent", "debug", "--no-open"], cwd=work, env=environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    needs = "-m pip install 'starlette<2,>=1' 'uvicorn<1,>=0.40'"
    assert needs in refused.stderr or "pip install 'starlette<2,>=1'" in refused.stderr
