"""A newcomer types the README, the quickstart, and the tutorial at a terminal of 80 columns, in a fresh home and an
empty folder, and opens the pages that the commands serve in a browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.testing import ScriptedServer, repeat
from tests.helpers.page_blocks import ROOT, PageBlocks, environment, provider
from tests.helpers.page_pictures import stale
from tests.helpers.screen import Screen, breaks, end, pexpect

pytestmark = pytest.mark.slow
COLUMNS, LINES = 80, 400  # lines enough for the longest output, so that all of it is on the screen
DEMO = re.search(r"^demo:.*\n\t@\$\(BIN\)/(.*)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
"""What ``make demo`` runs once everything is installed."""
LONGEST = 300.0
"""Seconds that a command may take on a busy machine."""
SERVES = {"fsm-agent debug": ".map .state", "fsm-agent serve": "textarea"}
"""Commands that serve a page until they are interrupted, and what is on it."""
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/\S*#token=\S{32}(?=\n)")
"""Of a page. What is on the screen may end within it."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
sync_api = pytest.importorskip("playwright.sync_api")


class Tour(PageBlocks):
    """Types each command of a page into a shell at a terminal. ``looked``: the pages that were opened."""

    def __init__(self, page: Path, folder: Path) -> None:
        super().__init__(page, folder)
        self.looked: list[str] = []
        self._closing = ExitStack()
        self._number = 0
        self._screen: Screen | None = None

    def close(self) -> None:
        self._closing.close()

    def _skip(self, example: Any) -> None:
        if "opens a browser" not in str(example.parsed):  # here is one
            super()._skip(example)

    def _shell(self, command: str, where: str) -> str:
        words = command.partition(" #")[0].strip()
        if words == "make test":
            return ""
        if words == "make demo":
            assert DEMO
            command = f"(cd {ROOT} && {DEMO[1]})"
        screen = self._screen = self._screen or self._closing.enter_context(shell(self.reader(), self.folder))
        self._number += 1
        screen.press("clear\r", until=self._prompt())
        self._number += 1
        screen.press(command.replace("\\\n", " ") + "\r")
        if words.startswith("fsm-agent chat"):
            screen.until("›")
            screen.press("/exit\r")
        elif words in SERVES:
            screen.until_so(lambda: ADDRESS.search(unwrapped(screen.rows)), "the address of a page")
            self._look(words, screen)
            screen.press("\x03")
        screen.until(self._prompt(), patience=LONGEST)
        text, _, after = unwrapped(screen.rows).partition(self._prompt())
        status = after.partition(">")[0]
        assert status in (("0", "130") if words in SERVES else "0"), f"{where}: {command}: {status}\n{text}"
        assert "Traceback" not in text, f"{where}: {command}\n{text}"
        if words.startswith("fsm-agent"):
            assert breaks(screen.rows, COLUMNS) == [], f"{where}: {command}\n{text}"
        return text.partition("\n")[2]  # the first row is the command itself

    def _prompt(self) -> str:
        return f"={self._number + 1}="

    def _look(self, words: str, screen: Screen) -> None:
        address = ADDRESS.search(unwrapped(screen.rows))
        assert address
        assert looked_at(address[0], SERVES[words]) == []
        self.looked.append(words)


def unwrapped(rows: list[str]) -> str:
    """The text of rows; a full row continues in the next one, unless it is a rule of pytest."""
    return "".join(row if len(row) == COLUMNS and not row.endswith("=") else row + "\n" for row in rows)


@contextmanager
def shell(env: dict[str, str], folder: Path) -> Iterator[Screen]:
    """A shell at a terminal; its prompt has the number of the command, and the status of the last one."""
    gone = ("COLUMNS", "LINES", "NO_COLOR", "PROMPT_COMMAND")
    env = {name: value for name, value in env.items() if name not in gone}
    env |= {"TERM": "xterm-256color", "PS1": r"=\#=$?>", "PS2": "", "BROWSER": "true"}
    bash = ["--norc", "--noprofile", "--noediting"]
    child = pexpect.spawn("bash", bash, env=env, cwd=str(folder), dimensions=(LINES, COLUMNS))
    try:
        screen = Screen(child, COLUMNS, LINES)
        screen.until("=1=")
        yield screen
    finally:
        end(child)


def looked_at(address: str, ready: str) -> list[str]:
    """Open a page in a browser until this is there; return what its console says. The browser lives no longer,
    because it runs a loop in this thread, and the programs of the pages want to run theirs."""
    said: list[str] = []
    with sync_api.sync_playwright() as started:
        page = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
        page.goto(address)
        page.locator(ready).first.wait_for()
    return said


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(
    ("page", "looked"),
    [
        ("README.md", ["fsm-agent debug", "fsm-agent serve"]),
        ("docs/quickstart.md", []),
        ("docs/tutorial.md", ["fsm-agent debug"]),
    ],
)
def test_a_newcomer_types_the_page_and_sees_what_it_shows(
    page: str, looked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FSM_AGENT_HOME")
    with ScriptedServer(repeat(provider)) as server:
        for name, value in environment(server.url, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        tour = Tour(ROOT / page, tmp_path / "work")
        try:
            assert tour.run()
        finally:
            tour.close()
    assert tour.looked == looked
    assert all(len(reason) > 20 for reason in tour.skipped)
    if page == "docs/tutorial.md":
        assert stale(tour.folder) == [], "run: make pictures"
