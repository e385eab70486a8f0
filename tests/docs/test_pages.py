"""The pages are typed in by a reader: every block is run, and prints what the page shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from docs.site.pages import FENCE, pages
from fsm_agent.cli.app import app
from fsm_agent.testing import ScriptedServer, repeat
from tests.helpers.page_blocks import PageBlocks, commands, environment, provider, same
from tests.helpers.page_pictures import changed, digests

ROOT = Path(__file__).parents[2]
TYPED_IN = (
    "docs/backtest.md", "docs/cookbook.md", "docs/evaluation.md", "docs/troubleshooting.md",
)  # fmt: skip
"""Their commands are run as shown, in a fresh home."""
RUN = (
    "README.md", "examples/README.md", "docs/acp.md", "docs/agent.md", "docs/agents.md", "docs/api/agent.md",
    "docs/api/errors.md", "docs/api/testing.md", "docs/api/tools.md", "docs/api/workflow.md",
    "docs/budgets.md", "docs/concepts.md", "docs/configuration.md", "docs/debugger-editors.md",
    "docs/debugger.md", "docs/debugging-tools.md", "docs/diagrams.md", "docs/extensions.md", "docs/hooks.md",
    "docs/mcp.md", "docs/output.md", "docs/people.md", "docs/production.md", "docs/prompt.md",
    "docs/properties.md", "docs/sandbox.md", "docs/serve-agui.md", "docs/serve.md", "docs/stores.md",
    "docs/streaming.md", "docs/telemetry.md", "docs/tools.md", "docs/upgrades.md", "docs/verify.md",
    "docs/web.md", "docs/workers.md", "docs/workflow-values.md",
)  # fmt: skip
"""Their Python is run, and their configuration is read."""
ELSEWHERE = {
    "docs/quickstart.md": "tests/docs/test_tour.py", "docs/tutorial.md": "tests/docs/test_tour.py",
    "docs/testing.md": "tests/testing/test_testing.py",
    "docs/serve-openai.md": "tests/serve/test_openai_clients.py",
    "docs/coming-from.md": "tests/peers/test_coming_from.py",
    "CONTRIBUTING.md": "tests/house/test_contributing.py", "ARCHITECTURE.md": "tests/house/test_house.py",
    "editors/vscode/README.md": "tests/debug/test_dap_extension.py",
}  # fmt: skip
COMMANDS_ONLY = {"docs/terminal.md", "docs/postgresql.md", "docs/sessions.md", "docs/commands.md"}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Someone with an empty folder, a fresh home, and providers that answer."""
    monkeypatch.delenv("FSM_AGENT_HOME")
    with ScriptedServer(repeat(provider)) as server:
        for name, value in environment(server.url, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield lambda page, **how: PageBlocks(ROOT / page, tmp_path / "work", **how)


@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_the_page_run(page: str, reader: Any) -> None:
    assert reader(page, commands=False).run()


@pytest.mark.slow
@pytest.mark.parametrize("page", TYPED_IN)
def test_the_page_is_typed_in_with_its_commands(page: str, reader: Any) -> None:
    blocks = reader(page)
    assert blocks.run()
    assert all(len(reason) > 20 for reason in blocks.skipped)


def test_the_pictures_of_the_browser_show_the_page_as_it_is() -> None:
    now = digests()
    assert changed(now) == [], "run: make pictures"
    style = "fsm_agent/debug/web/static/style.css"
    assert changed(now | {style: "another"}) == [style]
    assert changed({name: digest for name, digest in now.items() if name != style}) == [style]


def test_no_page_with_blocks_is_left_out() -> None:
    with_blocks = {str(page) for page in pages() if FENCE.search((ROOT / page).read_text(encoding="utf-8"))}
    assert with_blocks == {*TYPED_IN, *RUN, *ELSEWHERE, *COMMANDS_ONLY}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def shown_commands() -> list[tuple[str, list[str]]]:
    """Every ``fsm-agent`` of a console block, with its page, without what the shell does with it."""
    found = []
    for page in pages():
        for fence in FENCE.finditer((ROOT / page).read_text(encoding="utf-8")):
            for command, _ in commands(fence[3]) if fence[2] == "console" else ():
                for part in re.split(r"\|\|?|&&|;|>(?!=)", re.sub(r"\s#.*", "", command)):
                    if words := re.search(r"(?:^|\s)fsm-agent (.*)", part):
                        found.append((f"{page}: {command}", shlex.split(words[1])))
    return found


def test_every_command_on_the_pages_exists_with_its_options() -> None:
    shown = shown_commands()
    assert len(shown) > 80
    assert [where for where, words in shown if wrong(words)] == []


@cache
def program() -> Any:
    return typer.main.get_command(app)


def wrong(words: list[str]) -> str:
    """What is wrong with a command and its options; empty when nothing is."""
    command = program()
    while getattr(command, "commands", None):
        name = words[0] if words and words[0] in command.commands else getattr(command, "first", "show")
        if name not in command.commands:
            return f"no such command: {words[:1]}"
        command, words = command.commands[name], words[words[:1] == [name] :]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    context = click.Context(command)
    known |= set(command.get_help_option_names(context))
    return " ".join(
        word for word in words if word.startswith("-") and word != "-" and word.split("=")[0] not in known
    )


def test_a_command_that_there_is_not_is_found() -> None:
    assert wrong(["run", "--color", "x"]) == "--color"
    assert wrong(["fly"])
    assert not wrong(["diagram", "--format", "svg"])


def test_what_is_printed_otherwise_than_the_page_shows_is_found() -> None:
    same("a\nb\nc 12\n", "a\n…\nc …", "here")
    same("a\nc", "a\n…\nc", "here")
    for shown in ("a\nc", "a\nb\nd …", "b\nc …"):
        with pytest.raises(AssertionError, match="here: the page shows"):
            same("a\nb\nc 12\n", shown, "here")


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    for number, block in enumerate(
        (
            "```python\n1 / 0\n```\n",
            '```python\nprint("a")\n```\n\n```text\nb\n```\n',
            "```console\n$ false\n```\n",
            "```python\nfrom examples import order\n```\n",
            "```python\nimport tests.helpers\n```\n",
            "```python\nprint(home)\n```\n",
        )
    ):
        page = tmp_path / f"{number}.md"
        page.write_text(block)
        with pytest.raises((ZeroDivisionError, AssertionError, ModuleNotFoundError, NameError)):
            PageBlocks(page, tmp_path / "work").run()
