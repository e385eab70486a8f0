"""What is installed and what is shipped of others is what was looked at."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VENDOR = ROOT / "fsm_agent" / "debug" / "web" / "static" / "vendor"
LOCKS = ("development.txt", "supply.txt")
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


def test_the_lock_has_all_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {plain(one) for one in (*project["dependencies"], *project["optional-dependencies"]["dev"])}
    assert sorted(named - set(locked("development.txt"))) == [], "run: make lock"


def test_the_wheel_names_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [one for one in project["dependencies"] if "==" in one] == []


def test_ci_installs_the_lock() -> None:
    rule = (ROOT / "Makefile").read_text(encoding="utf-8").split(".venv/developing:")[1].split("\n\n")[0]
    assert "--require-hashes --requirement $(LOCK)" in rule
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
