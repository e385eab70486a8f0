"""The documentation site: every page has its place, every public name is explained, and it is built without a
network and without a broken link."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import fsm_agent
from docs.site import reference, search
from docs.site.pages import assemble, drawn, pages, relinked
from fsm_agent import testing
from fsm_agent.settings.errors import every_setting
from tests.helpers.processes import ran

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "zensical.toml").read_text(encoding="utf-8")
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
WITHOUT_A_PLACE = ("editors/", "examples/diagrams/")
"""Pages that others link to; they are not in the menu."""


def test_every_page_is_in_the_menu() -> None:
    def named(entries: Any) -> Iterator[str]:
        for entry in entries:
            for value in entry.values():
                yield from named(value) if isinstance(value, list) else [value]

    menu = list(named(tomllib.loads(CONFIG)["project"]["nav"]))
    assert len(menu) == len(set(menu))
    there = {str(page) for page in pages() if not str(page).startswith(WITHOUT_A_PLACE)}
    assert set(menu) == there


def test_every_page_is_linked_from_the_words_of_another() -> None:
    """The menu and the list of changes are for those who know what they look for."""
    link = re.compile(r"\]\(([^)#\s]+\.md)")
    linked = {
        os.path.normpath(page.parent / found)
        for page in pages()
        if page.name != "CHANGELOG.md"
        for found in link.findall((ROOT / page).read_text("utf-8"))
        if os.path.normpath(page.parent / found) != str(page)
    }
    in_menu = (str(page) for page in pages() if not str(page).startswith(WITHOUT_A_PLACE))
    assert [page for page in in_menu if page not in linked] == []


def test_settings_and_commands_are_those_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(check=True) == 0, capsys.readouterr().err


def test_a_stale_reference_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(reference.PAGES, "settings.md", lambda: "another page")
    assert reference.main(check=True) == 1
    assert "stale: docs/settings.md" in capsys.readouterr().err


def explained() -> set[int]:
    """The identities of all objects that the reference has: those that it names, and what is in modules."""
    found = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for name in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            found |= {id(value) for value in objects(name)}
    return found


def objects(name: str) -> list[object]:
    """What a directive shows. Raises when there is no such thing."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        holder, _, last = name.rpartition(".")
        return [getattr(importlib.import_module(holder), last)]
    return [value for key, value in vars(module).items() if not key.startswith("_")]


@pytest.mark.parametrize("package", [fsm_agent, testing])
def test_every_public_name_is_in_the_reference(package: Any) -> None:
    known = explained()
    names = [name for name in package.__all__ if name != "__version__"]
    assert [name for name in names if id(getattr(package, name)) not in known] == []


def test_each_setting_has_a_meaning_of_its_own() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|.*\| (.*) \|$", reference.settings_page(), re.MULTILINE)
    assert {name for name, _ in rows} == set(every_setting())
    assert [name for name, meaning in rows if not meaning.strip()] == []
    assert [name for name, meaning in rows if len(meaning) > 300] == []
    assert reference.settings_said().keys() <= every_setting().keys()


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in pages():
        relinked((ROOT / page).read_text(encoding="utf-8"), page, set())


def test_a_link_to_nothing_is_refused_and_code_is_no_link() -> None:
    page = PurePosixPath("docs/agent.md")
    with pytest.raises(ValueError, match=r"links to docs/nowhere\.md"):
        relinked("see [there](nowhere.md)", page, set())
    linked: set[PurePosixPath] = set()
    text = "`f](x.py)`\n[a](tools.md#own) [b](../Makefile) [c](../tests/house)\n```python\ng(1)[0](nowhere.md)\n```\n"
    made = relinked(text, page, linked)
    assert linked == {PurePosixPath("Makefile"), PurePosixPath("tests/house")}
    assert "[a](tools.md#own) [b](../code/Makefile.md) [c](../code/tests/house.md)" in made
    assert "`f](x.py)`" in made
    assert "g(1)[0](nowhere.md)" in made


def test_a_diagram_that_only_a_script_from_elsewhere_could_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="only arrows"):
        drawn("```mermaid\nflowchart TD\n    one -- why --> two\n```\n")


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build ``folder / "pages"`` as `make docs` does."""
    config = CONFIG.replace('"dist/pages"', '"pages"').replace('"dist/site"', '"site"')
    config = config.replace('paths = [".", "states"]', f'paths = ["{ROOT}", "{ROOT / "states"}"]')
    (folder / "zensical.toml").write_text(config, encoding="utf-8")
    return ran("-m", "zensical", "build", "--strict", "--clean", cwd=folder, timeout=900)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` leaves it."""
    folder = tmp_path_factory.mktemp("site")
    assemble(folder / "pages")
    done = built(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    search.main(folder / "site")
    return folder / "site"


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in pages():
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        assert (site / page.parent / name).exists(), page
    index = (site / "search.json").read_text(encoding="utf-8")
    assert '"docs/streaming.html' in index
    assert '"diagrams/turn.html' not in index  # guides come first
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\s\">]+)|<link[^>]*(?:stylesheet|icon|preload)[^>]*(https?:[^\s\">]+)"
    )
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not loads.search(text), path
        assert 'class="mermaid"' not in text, path
    assert ">composition</text>" in (site / "ARCHITECTURE.html").read_text(encoding="utf-8")
    reference_page = (site / "docs" / "api" / "agent.html").read_text(encoding="utf-8")
    for name in ("system_prompt", "workdir", "session_id", "api_mode", "store", "run_until"):
        assert name in reference_page


FIRST = {
    "approve tool": "docs/people", "approvals": "docs/terminal", "retries": "docs/agent",
    "retry": "docs/api/tools", "stream": "docs/streaming", "timeout": "docs/budgets",
    "limit cost": "docs/cookbook", "budget": "docs/agent", "system prompt": "docs/prompt",
    "structured output": "docs/output", "output type": "docs/output", "resume": "docs/sessions",
    "resume after crash": "docs/sessions", "fork": "docs/agent", "secrets": "docs/configuration",
    "fastapi": "docs/cookbook", "guardrail": "docs/hooks", "mcp": "docs/mcp", "postgres": "docs/postgresql",
    "worker": "docs/workers", "verify": "docs/verify", "Agent(": "docs/api/agent",
    "Agent.fork": "docs/api/agent", "stale.stream": "docs/settings",
}  # fmt: skip
"""What a reader types, and the page of the first answer: guides, unless a name of the reference is typed."""
ASK = """async ([worker, queries]) => {
    const search = new Worker(worker);
    const ask = (message) => new Promise((done) => {
        search.onmessage = ({ data }) => done(data);
        search.postMessage(message);
    });
    const index = await (await fetch("search.json")).json();
    await ask({ type: 0, data: index });
    const first = {};
    for (const query of queries) {
        const { data } = await ask({ type: 2, data: { input: query } });
        first[query] = data.items.length ? index.items[data.items[0].id].location : "";
    }
    return first;
}"""
"""Ask the site's own search, in its worker: 0 gives it the index, 2 asks."""


@pytest.mark.slow
def test_the_search_finds_the_guide_first(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, playwright.sync_playwright() as started:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html", wait_until="commit", timeout=120_000)
        worker = json.loads(page.locator("#__config").text_content())["search"]
        first = page.evaluate(ASK, [worker, list(FIRST)])
        server.shutdown()
    assert {query: location.partition(".html")[0] for query, location in first.items()} == FIRST


def test_guides_stand_before_the_reference_and_a_member_has_its_full_name() -> None:
    items = [
        {"location": "docs/settings.html#stalestream", "title": "stale.stream"},
        {"location": "docs/api/agent.html#fsm_agent.Agent.fork", "title": "fork"},
        {"location": "docs/style.html", "title": "Style"},
        {"location": "docs/streaming.html", "title": "Streaming"},
    ]
    titles = [item["title"] for item in search.ordered(items)]
    assert titles == ["Streaming", "Settings: stale.stream", "Reference: Agent.fork", "Style"]


@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "README.md").write_text("# Home\n\n[there](#nowhere)\n")
    done = built(tmp_path)
    assert done.returncode != 0
    assert "anchor does not exist" in done.stdout + done.stderr
