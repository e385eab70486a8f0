"""The exercises of CONTRIBUTING.md fit this tree and are green after them; the commands of the README work,
word for word, in a fresh clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import hatchling.build
import pytest

from tests.helpers.processes import environment, ran

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COPIED = ("benchmarks", "fsm_agent", "states", "tests", "examples", "diagrams", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md")  # fmt: skip
UNWANTED = shutil.ignore_patterns("pictures", "*.pyc.*")
"""``*.pyc.*``: a compiled file that another process is writing."""


def parts_of(heading: str) -> dict[str, str]:
    """The parts below a heading of the page, by their titles."""
    whole = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return dict(part.split("\n", 1) for part in whole.split("\n### ")[1:])


def blocks_of(parts: dict[str, str]) -> dict[str, list[str]]:
    """The patches in each part."""
    return {
        title: re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for title, text in parts.items()
    }


TASKS, EXERCISES = blocks_of(parts_of("Three small tasks")), blocks_of(parts_of("Six exercises"))


def patched(blocks: list[str], root: Path) -> set[str]:
    """Apply patches below ``root``; the files that were changed. Raises ``AssertionError``
    for a piece that is not in its file exactly once. A file that is not there is made."""
    changed = set()
    for name, pieces in files_in(blocks):
        path = root / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for lines in pieces:
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            assert text.count(before) == 1 or not (before or text), f"{name} has not exactly one\n{before}"
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
        changed.add(name)
    return changed


def files_in(blocks: list[str]) -> Iterator[tuple[str, list[list[str]]]]:
    """Each file of some patches, with its pieces."""
    for part in re.split(r"^\+\+\+ ", "".join(blocks), flags=re.MULTILINE)[1:]:
        name, _, pieces = part.partition("\n")
        split = [
            piece.splitlines(keepends=True) for piece in re.split(r"^@@\n", pieces, flags=re.MULTILINE)[1:]
        ]
        yield name, [[line if line.strip("\n") else " \n" for line in piece] for piece in split]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tree, without what git does not know."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():  # with the compiled files beside the sources
            shutil.copytree(source, tmp_path / name, ignore=UNWANTED)
        else:
            shutil.copy2(source, tmp_path / name)
    return tmp_path


def run(root: Path, *arguments: str) -> str:
    """What ``python -m`` prints in the copy; fails with it when the command does."""
    path = os.pathsep.join(map(str, (root, root / "states")))
    done = ran("-m", *arguments, cwd=root, env=environment(PYTHONPATH=path), timeout=900)
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def with_diagrams(root: Path) -> None:
    """As ``make diagrams`` does."""
    run(root, "fsm_agent.diagram", "diagrams")
    for name in ("order", "nested"):
        named = ["--table", f"examples.{name}:TABLE", "--limits", f"examples.{name}:LIMITS"]
        run(root, "fsm_agent.diagram", f"examples/diagrams/{name}", *named)


def lines_written(blocks: list[str]) -> int:
    return sum(line.startswith("+") and not line.startswith("+++") for line in "".join(blocks).splitlines())


@pytest.mark.parametrize("heading", ["Three small tasks", "Six exercises"])
def test_the_page_says_how_much_each_change_is(heading: str) -> None:
    parts = parts_of(heading)
    assert len(parts) == {"Three": 3, "Six": 6}[heading.split()[0]]
    for title, blocks in blocks_of(parts).items():
        size = f"{len(list(files_in(blocks)))} files, {lines_written(blocks)} lines written"
        assert size in " ".join(parts[title].split()), title


@pytest.mark.slow
def test_a_stranger_finds_what_to_change(copy: Path) -> None:
    """Prints what each task takes: files that the searches list, files and lines changed, seconds of the check."""
    print("| task | files listed | files changed | lines | check |\n|---|---:|---:|---:|---:|")
    for title, text in parts_of("Three small tasks").items():
        test, change = TASKS[title]
        searches = re.findall(r"^\$ (grep .*)$", text, re.MULTILINE)
        [check] = re.findall(r"^\$ pytest (.*)$", text, re.MULTILINE)
        listed = [
            {line.partition(":")[0] for line in shell(f"{search} -I", copy, os.environ).stdout.splitlines()}
            for search in searches
        ]
        [source] = [name for name, _ in files_in([change])]
        assert listed[-1] == {source}, title
        checked = ("pytest", "-p", "no:cacheprovider", *check.split())
        patched([test], copy)
        with pytest.raises(AssertionError, match="1 failed"):
            run(copy, *checked)
        patched([change], copy)
        began = time.monotonic()
        run(copy, *checked)
        sizes = len(set().union(*listed)), 2, lines_written([test, change])
        print("|", title, *(f"| {size}" for size in sizes), f"| {time.monotonic() - began:.0f} s |")


@pytest.mark.slow
def test_the_exercises_can_be_done_and_all_that_they_name_is_green_after_them(copy: Path) -> None:
    """All in one copy, because they share no file."""
    changed = [patched(blocks, copy) for blocks in EXERCISES.values()]
    assert len(changed) == 6
    assert len(set().union(*changed)) == sum(map(len, changed))
    with_diagrams(copy)
    page = "".join(parts_of("Six exercises").values())  # what the tasks name runs in their own test
    named = set(
        re.findall(r"tests/\w+(?:/\w+)*\.py", "".join(re.findall(r"^\$ pytest .*$", page, re.MULTILINE)))
    )
    assert len(named) >= 7
    removed = re.findall(r"^\$ rm (\S+\.footprints)", page, re.MULTILINE)
    for name in removed:
        (copy / name).unlink()
        only = ["-k", "footprints", "-m", "not slow"]
        with pytest.raises(AssertionError, match="was not there and is written now"):
            run(copy, "pytest", "-p", "no:cacheprovider", "tests/workflow/test_examples_of_tables.py", *only)
    assert removed == ["tests/workflow/order.footprints"]
    run(copy, "pytest", "-p", "no:cacheprovider", "-m", "not slow", *sorted(named))
    run(copy, "ruff", "check", ".")
    run(copy, "ruff", "format", "--check", ".")
    if (known := ROOT / ".mypy_cache").exists():  # then only what an exercise changes is checked again
        shutil.copytree(known, copy / known.name)
    run(copy, "mypy")


@pytest.mark.slow
def test_what_fails_before_an_exercise_is_done(copy: Path) -> None:
    """The table alone, as the page says: the checks report the forgotten rest."""
    patched(next(iter(EXERCISES.values()))[:1], copy)
    for arguments, says in (
        (("fsm_agent.diagram", "--check", "diagrams"), "stale: diagrams/turn.svg (run: "),
        (("pytest", "tests/states/test_states.py"), "echoed"),
    ):
        with pytest.raises(AssertionError, match=re.escape(says)):
            run(copy, *arguments)


pytestmark = pytest.mark.slow
NEEDS_A_MODEL, NEEDS_MORE = "--model openai", ("acp", "debug", "diagram diff", "serve", "worker")
"""Commands that need a key, an editor, a browser, an extra, a repository with a history, or a custom program."""


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


def shell(words: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
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
        ROOT,
        clone,
        ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", ".supply", ".peers", "__pycache__"),
    )
    environment = clean_environment(home)
    first = shell(commands()[0], clone, environment)
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
        shell(words, clone, environment)
        tried += 1
    assert tried >= 7


def test_the_wheel_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``pipx`` and ``uvx`` do: an environment of its own with the wheel and what it needs from the index."""
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    work, environment = tmp_path / "work", clean_environment(tmp_path)
    work.mkdir()
    python = f"{tmp_path}/venv/bin/python"
    shell(f"{sys.executable} -m venv --without-pip {tmp_path}/venv", work, environment)
    install = f"{ROOT}/requirements/install {Path(sys.executable).parent}"
    shell(f"{install} {wheel}", work, {**environment, "PIP_PYTHON": python})
    answer = shell(
        f"{tmp_path}/venv/bin/fsm-agent run -q --model offline:demo 'what is 6*7?'", work, environment
    ).stdout
    assert answer.startswith("6*7 = 42\n")
    listed = shell(f"{python} -m fsm_agent examples", work, environment).stdout
    assert "examples/review_loop.py  A table of its own" in listed
    assert "accepted: A machine" in shell(f"{python} -m examples.review_loop", work, environment).stdout
    refused = subprocess.run(
        [f"{tmp_path}/venv/bin/fsm-agent", "debug", "--no-open"], cwd=work, env=environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    needs = "-m pip install 'starlette<2,>=1' 'uvicorn<1,>=0.40'"
    assert needs in refused.stderr or "pip install 'starlette<2,>=1'" in refused.stderr
