"""``python -m tests.helpers.page_pictures``: the pictures of the tutorial, taken while its blocks are run: what its
commands draw, and the debugger at one of its turns. Beside the pictures of the browser are the digests of what they
were taken of, which tell that the page has changed since."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from tests.helpers.page_blocks import ROOT, PageBlocks, environment
from tests.helpers.terminal_picture import terminal_svg

PICTURES = ROOT / "docs" / "pictures"
DRAWN = {"returns.svg": "tutorial-returns.svg", "taken.svg": "tutorial-rows.svg"}
"""What the tutorial draws, and the picture that shows it. The same on every run."""
ASKED = ("run", "--model", "offline:demo", "--tool", "desk:find_order", 'find_order(number="1001")')
"""What the terminal of the tutorial shows."""
TERMINAL = "tutorial-terminal.svg"
SOURCES = PICTURES / "sources.txt"
"""The digests of what the browser showed when its pictures were taken."""
PAGE = ROOT / "fsm_agent" / "debug" / "web"
FILLS = (
    *PAGE.glob("*.py"),
    ROOT / "fsm_agent" / "debug" / "core" / "record.py",
    ROOT / "tests" / "browser" / "pictures.py",
    ROOT / "tests" / "browser" / "scenes.py",
)
"""The code that fills the page, and the turns that it is filled with."""
ELSEWHERE = re.compile(r"live\.|.*\.(md|LICENSE)$")
"""Files beside the page's own: those of another page, and words about them."""


def digests() -> dict[str, str]:
    """A digest of each source of the pictures of the browser: of a file, of code without its comments and imports,
    and of the map as it is drawn."""
    from fsm_agent.debug.web.page import map_of
    from fsm_agent_states.table import TURN

    files = [
        file for file in (PAGE / "static").rglob("*") if file.is_file() and not ELSEWHERE.match(file.name)
    ]
    found = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files}
    for file in FILLS:
        body = ast.parse(file.read_text("utf-8")).body
        does = [_shape(one) for one in body if not isinstance(one, ast.Import | ast.ImportFrom)]
        found[file.relative_to(ROOT).as_posix()] = "\n".join(does)
    found["the map of a turn"] = map_of(TURN)
    return {name: hashlib.sha256(found[name].encode()).hexdigest()[:16] for name in sorted(found)}


def _shape(value: object) -> str:
    """What a piece of code does, the same on every Python: without fields that are empty, which newer ones add."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shape, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = [(name, part) for name, part in ast.iter_fields(value) if part is not None and part != []]
    return f"{type(value).__name__}({', '.join(f'{name}={_shape(part)}' for name, part in fields)})"


def changed(now: dict[str, str]) -> list[str]:
    """The sources whose digest is another one than when the pictures of the browser were taken."""
    taken = {
        name: digest for digest, name in (line.split(" ", 1) for line in SOURCES.read_text().splitlines())
    }
    return [name for name in sorted(now.keys() | taken.keys()) if now.get(name) != taken.get(name)]


def keep_digests() -> None:
    """Write down what the pictures of the browser were taken of."""
    SOURCES.write_text("".join(f"{digest} {name}\n" for name, digest in digests().items()))


def stale(folder: Path) -> list[str]:
    """The pictures that differ from what the tutorial has just drawn in ``folder``, and from what its terminal
    shows there; numbers on the terminal are times."""
    found = [
        picture
        for drawn, picture in DRAWN.items()
        if not (PICTURES / picture).exists()
        or (folder / drawn).read_bytes() != (PICTURES / picture).read_bytes()
    ]
    shown = [_words(svg) for svg in (terminal(folder), (PICTURES / TERMINAL).read_text("utf-8"))]
    return found if shown[0] == shown[1] else [*found, TERMINAL]


def terminal(folder: Path) -> str:
    """What the terminal shows, as a picture."""
    return terminal_svg([sys.executable, "-m", "fsm_agent", *ASKED], folder, "fsm-agent run")


def _words(svg: str) -> str:
    """The text of a picture without its numbers."""
    return re.sub(r"\d+", "0", "".join(re.findall(r">([^<>]*)</text>", svg)))


def main() -> None:
    """Run the tutorial in a fresh home, and keep what it shows."""
    from fsm_agent.testing import ScriptedServer, repeat
    from tests.helpers.page_blocks import provider

    place = Path(tempfile.mkdtemp())
    os.environ.pop("FSM_AGENT_HOME", None)
    with ScriptedServer(repeat(provider)) as server:
        os.environ.update(environment(server.url, place / "home"))
        PageBlocks(ROOT / "docs" / "tutorial.md", place / "work").run()
        for drawn, picture in DRAWN.items():
            shutil.copyfile(place / "work" / drawn, PICTURES / picture)
        (PICTURES / TERMINAL).write_text(terminal(place / "work"), encoding="utf-8")
        debugger(place / "work", PICTURES / "tutorial-debugger.png")


def debugger(folder: Path, picture: Path) -> None:
    """The page at the move before the tool ran, of the turn that the tutorial steps through."""
    from playwright.sync_api import sync_playwright

    from fsm_agent.debug import DebugSession
    from fsm_agent.debug.web.app import DebugServer

    sys.path.insert(0, str(folder))
    from desk import desk  # type: ignore[import-not-found]

    agent = desk()
    turn = agent.start('find_order(number="1002")')
    turn.run()
    session = DebugSession(agent.store)
    server = DebugServer(session, first=turn.id)
    server.start()
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.goto(server.url)
        page.locator("#map [id^=state-]").first.wait_for()
        for _ in range(3):
            page.keyboard.press("b")
        page.wait_for_timeout(500)
        page.screenshot(path=picture)
        browser.close()
    server.stop()
    session.close()


if __name__ == "__main__":
    main()
