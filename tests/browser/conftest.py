from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.debug import DebugSession
from tests.helpers.waiting import PATIENCE


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A browser without a window, one for all tests here."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


LARGER = """new MutationObserver((_, watch) => {
    if (!document.documentElement) return;
    document.documentElement.style.fontSize = "TEXTpx";
    watch.disconnect();
}).observe(document, { childList: true });"""
PHASES = ("paused", "running", "waiting", "ended", "idle")
EVERY_PHASE = ", ".join(f".chip.engine.{phase}" for phase in PHASES)


class Browser:
    """Opens the page of a workshop; every error on a console is kept."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium
        self._closing = ExitStack()
        self.errors: list[str] = []
        self.strange: list[str] = []
        self._forgiven: re.Pattern[str] | None = None

    def serve(self, workshop: DebugSession, first: str | None = None) -> Any:
        from fsm_agent.debug.web.app import DebugServer

        server = DebugServer(workshop, first=first)
        server.start()
        self._closing.callback(workshop.close)
        self._closing.callback(server.stop)
        return server

    def serve_live(self, path: Path) -> Any:
        """Serve the page of a watched table."""
        from fsm_agent.debug.live.page import LivePage
        from fsm_agent.debug.live.watched import Watched
        from fsm_agent.debug.web.app import PageServer

        watched = Watched(path)
        watched.start()
        server = PageServer(lambda port, token: LivePage(watched, (token,)).app(port, token))
        server.start()
        self._closing.callback(watched.close)
        self._closing.callback(server.stop)
        return server

    def open(
        self,
        url: str,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        *,
        text: int = 16,
        still: bool = False,
        ready: str = EVERY_PHASE,
    ) -> Any:
        """A page with a map. ``text``: pixels of the reader's usual text; ``still``: a reader who wants nothing
        to move; ``ready``: what the page has when it is there."""
        page = self.visit(url, width, height, dark, text=text, still=still)
        page.wait_for_selector("#map [id^=state-]")
        page.wait_for_selector(ready)
        return page

    def visit(
        self,
        url: str,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        *,
        text: int = 16,
        still: bool = False,
    ) -> Any:
        """Any page of ours."""
        context = self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference",
        )
        self._closing.callback(context.close)
        page = context.new_page()
        if text != 16:
            page.add_init_script(LARGER.replace("TEXT", str(text)))
        page.set_default_timeout(1_000 * PATIENCE)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._look(request.url, url))
        page.goto(url)
        return page

    def forgive(self, what: re.Pattern[str]) -> None:
        """Errors of the network that a test brings about."""
        self._forgiven = what

    def _hear(self, message: Any) -> None:
        forgiven = self._forgiven is not None and self._forgiven.search(message.text)
        if message.type in ("error", "warning") and not forgiven:
            self.errors.append(message.text)

    def _look(self, asked: str, own: str) -> None:
        if not asked.startswith((re.split(r"[?#]", own)[0], "data:", "blob:")):
            self.strange.append(asked)

    def close(self) -> None:
        self._closing.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    """No error on any console, and no request to anywhere else."""
    made = Browser(chromium)
    yield made
    made.close()
    assert made.errors == []
    assert made.strange == []
