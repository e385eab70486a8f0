"""What is installed and what is shipped of others is what was looked at."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VENDOR = ROOT / "fsm_agent" / "debug" / "web" / "static" / "vendor"
LOCKS = ("development.txt", "testing.txt", "supply.txt")
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
    assert len(locked(name)) > 30
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
    assert "$(PIP) --require-hashes --requirement $(1)" in makefile
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
