"""``python -m docs.site.reference``: docs/settings.md and docs/commands.md, made from the code. ``--check``
only says which of them is stale, and fails."""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import typer.main
from pydantic import BaseModel

from fsm_agent.cli.app import app
from fsm_agent.settings import ENV_PREFIX, Settings
from fsm_agent.settings.errors import every_setting

DOCS = Path(__file__).parents[1]
SETTINGS = """# Settings

Reference of every setting, generated from the code that validates it. The same name works in three places,
and the later one wins: `[settings.budget]` in `config.toml`, `{prefix}BUDGET__GRACE_CALL=false` in the
environment, `settings={{"budget": {{"grace_call": False}}}}` in Python. For one run, use
`--set budget.grace_call=false`. `fsm-agent config list` prints the current values and their sources.
[Configuration](configuration.md) explains files, keys, and providers.
"""
COMMANDS = """# Commands

Reference of every command and option, generated from the program. `fsm-agent COMMAND --help` prints the same.
If `fsm-agent` is not on the path, use `python -m fsm_agent`.
"""


def settings_page() -> str:
    """The settings by group: what the group is for, then name, default, what is allowed, and the meaning."""
    known = every_setting()
    written = settings_said()
    parts = [SETTINGS.format(prefix=ENV_PREFIX)]
    for group, kind in _groups("", Settings):
        names = [name for name in known if name.rpartition(".")[0] == group]
        if not names:
            continue
        parts.append(f"## {group or 'General'}\n")
        said, meanings = meanings_of(_text(kind.__doc__ or ""), [name.rpartition(".")[2] for name in names])
        if said:
            parts.append(f"{said}\n")
        rows = [
            f"| `{name}` | {_value(known[name].default)} | {_words(known[name].allowed)} |"
            f" {written.get(name) or meanings.get(name.rpartition('.')[2], '')} |"
            for name in names
        ]
        head = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([*head, *rows]) + "\n")
    return "\n".join(parts)


def settings_said() -> dict[str, str]:
    """Return the meanings that ``settings.toml`` gives, by the names of the settings."""
    text = Path(__file__).with_name("settings.toml").read_text(encoding="utf-8")
    said: dict[str, str] = tomllib.loads(text)
    return said


def meanings_of(text: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Split the docstring of a group, ``words. `name`: meaning. `a`, `b`: meaning``, into its words and the
    meaning of each setting in ``names``."""
    found: dict[str, str] = {}
    label = "(?:" + "|".join(map(re.escape, names)) + ")"
    heading = re.compile(rf"(?:^|(?<=[.;] )|(?<=\n))((?:`{label}`(?:, | and )?)+): ")
    said, *pieces = heading.split(text)
    for named, meaning in zip(pieces[::2], pieces[1::2], strict=True):
        words, paragraph, more = meaning.partition("\n\n")
        said += paragraph + more
        cell = words.strip().rstrip(".;").replace("|", "\\|")
        found |= dict.fromkeys(re.findall(r"`(\w+)`", named), cell[:1].upper() + cell[1:])
    return said.strip(), found


def commands_page() -> str:
    """The commands, groups before what is in them: usage, help, arguments and options."""
    root: Any = typer.main.get_command(app)
    return "\n".join([COMMANDS, *_commands(root, click.Context(root, info_name="fsm-agent"))])


def _groups(path: str, kind: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, kind
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from _groups(f"{path}.{name}".lstrip("."), type(default))


def _commands(command: Any, context: click.Context) -> Iterator[str]:
    path = context.command_path
    yield f"## {path}\n"
    yield f"{_text(command.help or '')}\n"
    if getattr(command, "commands", None):
        names = command.list_commands(context)
        yield " · ".join(f"[{name}](#{f'{path} {name}'.replace(' ', '-')})" for name in names) + "\n"
    else:
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```text\n{path} {usage}\n```\n"
    rows = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    if rows := [row for row in rows if "--help" not in row[0]]:
        yield (
            "\n".join(
                [
                    "| option | |",
                    "|---|---|",
                    *(f"| `{_cell(name)}` | {_words(help)} |" for name, help in rows),
                ]
            )
            + "\n"
        )
    for name in getattr(command, "commands", None) or ():
        child = command.get_command(context, name)
        yield from _commands(child, click.Context(child, info_name=name, parent=context))


def _text(docstring: str) -> str:
    """One paragraph a line, code marked as the pages do it."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    return "\n\n".join(" ".join(one.split()).replace("``", "`") for one in paragraphs)


def _cell(text: str) -> str:
    """Within a code span: only the bar of the table means anything."""
    return " ".join(text.split()).replace("|", "\\|")


def _words(text: str) -> str:
    """Words of a cell, nothing of which is a mark."""
    return re.sub(r"([\[\]*_^])", r"\\\1", _cell(text)).replace("<", "&lt;")


def _value(value: Any) -> str:
    shown = {None: "–", True: "`true`", False: "`false`"}
    if value is None or isinstance(value, bool):
        return shown[value]
    if isinstance(value, tuple | list | dict | set | frozenset) and not value:
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    return f"`{_cell(str(value))}`" if str(value) else "empty"


PAGES = {"settings.md": settings_page, "commands.md": commands_page}


def main(check: bool) -> int:
    """Write the pages, or say which are stale. Return how many are."""
    stale = [name for name, made in PAGES.items() if _read(DOCS / name) != made()]
    for name in stale:
        if check:
            sys.stderr.write(f"stale: docs/{name} (run: python -m docs.site.reference)\n")
        else:
            (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
    return len(stale) if check else 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
