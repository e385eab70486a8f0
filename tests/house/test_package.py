"""The package: what importing costs, what is public, what an installation puts on the path, and what is
installed besides."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import tomllib
import zipfile
from pathlib import Path

import hatchling.build
import pytest

import fsm_agent
from fsm_agent.errors import ConfigError
from fsm_agent.support import load_module, without_collection
from tests.helpers.processes import environment, ran

UI = {"typer", "rich", "prompt_toolkit"}
CLIENTS = "openai anthropic httpx httpx2 aiohttp uvloop transitions tenacity temporalio psycopg"
HEAVY = {*CLIENTS.split(), *UI}
NAMED, TURN = "from fsm_agent import Agent; Agent.chat", "Agent(ScriptedModel([text('x')])).chat('go')"
STEPS = (
    "import fsm_agent", NAMED, f"from fsm_agent.testing import ScriptedModel, text; {TURN}",
    "Agent('openai:m', api_key='k')",
)  # fmt: skip
UNUSED = {f"fsm_agent.toolsets.{name}" for name in ("agent.ask", "code", "mcp", "web")}
UNUSED |= {"html.parser", "http.client", "urllib.request"}
PROOFS = {"fsm_agent.fsm.verify.properties", "fsm_agent_states.logic.shapes"}


@pytest.fixture(scope="module")
def loaded() -> list[set[str]]:
    """The modules that one process has after each of the steps."""
    code = "import sys\n" + "\n".join(f"{one}\nprint(*sys.modules)" for one in STEPS)
    done = ran("-c", code)
    return [set(line.split()) for line in done.stdout.splitlines()]


def packages(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_importing_the_package_loads_little_and_naming_an_agent_no_client(loaded: list[set[str]]) -> None:
    imported, named, *_ = loaded
    assert not packages(imported) & {*HEAVY, "pydantic", "asyncio", "sqlite3", "fsm_agent_states"}
    assert len({name for name in imported if name.startswith("fsm_agent")}) < 10
    assert not packages(named) & HEAVY - {"transitions"}


def test_a_turn_loads_nothing_that_it_does_not_use_and_one_proof_that_it_ends(loaded: list[set[str]]) -> None:
    turn = loaded[2]
    assert not packages(turn) & {*HEAVY, "mcp"} - {"transitions", "uvloop"}
    assert not turn & {*UNUSED, *PROOFS}
    assert "fsm_agent.fsm.proof" in turn


def test_an_agent_loads_no_sdk_before_its_first_call(loaded: list[set[str]]) -> None:
    assert not packages(loaded[3]) & {"openai", "anthropic", *UI}


def test_the_collector_rests_while_modules_are_loaded_and_is_left_as_it_was() -> None:
    before = gc.get_stats()[2]["collections"]
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_stats()[2]["collections"] == before
    with pytest.raises(ModuleNotFoundError):
        load_module("fsm_agent.nothing")
    assert gc.isenabled()
    assert load_module("fsm_agent.errors").ConfigError is ConfigError


def test_the_public_names_are_what_all_says() -> None:
    assert fsm_agent.__all__ == sorted(fsm_agent.__all__)
    for name in fsm_agent.__all__:
        assert getattr(fsm_agent, name) is not None
    assert set(dir(fsm_agent)) == set(fsm_agent.__all__)
    assert not hasattr(fsm_agent, "nothing")


ROOT = Path(__file__).parents[2]
OURS = {"fsm_agent", "fsm_agent_states"}
THEIRS = ("states", "tests", "diagrams", "table", "turn", "docs", "examples")
PROGRAM = """
import sys
import {names}
from fsm_agent import Agent
from fsm_agent.testing import ScriptedModel, text
import fsm_agent_states.table

for name in {theirs!r}:
    assert sys.modules[name].OWNER == "the user", sys.modules[name].__file__
assert Agent(ScriptedModel([text("hello")]), home={home!r}, toolsets=[]).chat("hi") == "hello"
print("ran with", fsm_agent_states.table.__file__)
"""
TEST = """
def test_of_the_user():
    import program
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked, as it is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        name = hatchling.build.build_wheel(str(folder))
    finally:
        os.chdir(before)
    with zipfile.ZipFile(folder / name) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_has_no_name_that_a_user_could_have(wheel: Path) -> None:
    found = {one.name for one in wheel.iterdir()}
    assert {name for name in found if not name.endswith(".dist-info")} == OURS
    assert (wheel / "fsm_agent" / "py.typed").exists()
    assert (wheel / "fsm_agent_states" / "py.typed").exists()
    assert (wheel / "fsm_agent_states" / "table.py").read_text() == (
        ROOT / "states" / "fsm_agent_states" / "table.py"
    ).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["module", "package"])
@pytest.mark.parametrize("installed", ["editable", "wheel"])
def test_a_program_with_such_modules_runs(tmp_path: Path, wheel: Path, installed: str, kind: str) -> None:
    """As a program, as a module, and under pytest."""
    path = {"editable": [], "wheel": [str(wheel)]}[installed]
    env = environment(PYTHONPATH=os.pathsep.join(path))
    for theirs in THEIRS:
        own = tmp_path / f"{theirs}.py" if kind == "module" else tmp_path / theirs / "__init__.py"
        own.parent.mkdir(exist_ok=True)
        own.write_text('OWNER = "the user"\n')
    (tmp_path / "program.py").write_text(
        PROGRAM.format(names=", ".join(THEIRS), theirs=THEIRS, home=str(tmp_path / "home"))
    )
    (tmp_path / "test_program.py").write_text(TEST)
    for words in (
        ["program.py"],
        ["-m", "program"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_program.py"],
    ):
        done = ran(*words, cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{words}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        if "pytest" not in words:
            assert done.stdout.startswith(f"ran with {wheel if installed == 'wheel' else ROOT}"), done.stdout


VENDOR = ROOT / "fsm_agent" / "debug" / "web" / "static" / "vendor"
LOCKS = {"development.txt": 100, "testing.txt": 60, "supply.txt": 30, "installer.txt": 1}
"""Each lock, and the least number of packages that it holds."""
PINNED = re.compile(
    r"([a-z0-9][a-z0-9._-]*)==([^\s\\;]+)(?: ;[^\\\n]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)
COMMENT = re.compile(r"(?m)^(?:#|    # ).*\n|^    #\n")


def locked(name: str) -> dict[str, str]:
    text = COMMENT.sub("", (ROOT / "requirements" / name).read_text(encoding="utf-8"))
    assert PINNED.sub("", text).strip() == "", "every line is a version with its hashes"
    return {found[1]: found[2] for found in PINNED.finditer(text)}


def plain(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_has_a_hash_for_everything_and_no_place(name: str) -> None:
    assert len(locked(name)) >= LOCKS[name]
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    assert not re.search(r"://|--(?:extra-)?index|--find-links|--trusted|@ |\.\./|(?<![\w.])/\w", text)


@pytest.mark.parametrize(
    ("lock", "extras"), [("testing.txt", ["test"]), ("development.txt", ["test", "dev"])]
)
def test_the_lock_has_all_that_the_project_names(lock: str, extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [
        *project["dependencies"],
        *(one for name in extras for one in project["optional-dependencies"][name]),
    ]
    assert sorted({plain(one) for one in named} - set(locked(lock))) == [], "run: make lock"


def test_what_the_fast_suite_needs_is_the_same_version_everywhere() -> None:
    everything = locked("development.txt")
    assert {name: everything.get(name) for name in locked("testing.txt")} == locked("testing.txt"), (
        "run: make lock"
    )


def test_the_wheel_names_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [one for one in project["dependencies"] if "==" in one] == []


def test_ci_installs_the_lock() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "$(INSTALL) $(BIN) --require-hashes --requirement $(1)" in makefile
    assert "--require-hashes" in (ROOT / "requirements" / "install").read_text(encoding="utf-8")
    assert "$(call install,$(LOCK)," in makefile.split("$(VENV)/developing:")[1].split("\n\n")[0]
    assert "make audit" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_vendored_scripts_are_those_that_were_looked_at() -> None:
    found = re.findall(
        r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "VENDORED.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    said = {name: checksum for checksum, name in found}
    there = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.suffix != ".md"
    }
    assert said == there
