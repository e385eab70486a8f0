"""``fsm-agent config``: shows settings and where they are set, and changes them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tomlkit
import typer
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from rich.text import Text
from tomlkit.exceptions import ParseError, TOMLKitError

from fsm_agent.cli.arguments import value_of
from fsm_agent.cli.models import learned_facts, lines_of, model_facts, name_of
from fsm_agent.cli.options import HomeFolder, Json
from fsm_agent.cli.screen import WholeTable, clean, console_of
from fsm_agent.errors import ConfigError
from fsm_agent.providers.choose import MODEL_ENV
from fsm_agent.providers.config_file import CONFIG, KEYS, Config, check_config, config_of
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.sessions.store.postgres import masked_url
from fsm_agent.settings import ENV_PREFIX, Settings, from_environment, unknown_variables
from fsm_agent.settings.errors import about_unknown, every_setting
from fsm_agent.support.files import home_of, private_folder, replace_file
from fsm_agent.support.redaction import mask

DEFAULT = "default"
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="For example max_iterations, compression.threshold, or model.")
]


def show(home: HomeFolder = None, as_json: Json = False) -> int:
    """Show the config file, and every setting that differs from its default."""
    config = config_of(home_of(home, os.environ))
    rows = [row for row in _rows(config) if row["from"] != DEFAULT]
    if as_json:
        print(json.dumps(_summary(config) | {"settings": rows, "unknown_variables": unknown_variables()}))
        return 0
    console = console_of(sys.stdout)
    for name, words in _summary(config).items():
        if words:
            console.print(
                f"{name:<12} {clean(', '.join(words) if isinstance(words, list) else str(words))}",
                markup=False,
            )
    if rows:
        console.print()
        console.print(_table(rows, ("setting", "value", "default", "from")))
    else:
        console.print(Text("every setting has its default; fsm-agent config list shows them", "dim"))
    for name in unknown_variables():
        print(f"fsm-agent: {about_unknown(name)}", file=sys.stderr)
    return 0


def list_settings(home: HomeFolder = None, as_json: Json = False) -> int:
    """List every setting: value, allowed values, source."""
    rows = _rows(config_of(home_of(home, os.environ)))
    if as_json:
        print(json.dumps(rows))
        return 0
    console_of(sys.stdout).print(_table(rows, ("setting", "value", "allowed", "from")))
    return 0


def get(name: Name, home: HomeFolder = None) -> int:
    """Print one value; a list or table as JSON."""
    config = config_of(home_of(home, os.environ))
    if name == "model":
        print(os.environ.get(MODEL_ENV) or config.model or "")
        return 0
    row = next((row for row in _rows(config) if row["setting"] == name), None)
    if row is None:
        raise _unknown(name)
    value = row["value"]
    print(value if isinstance(value, str) else json.dumps(value))
    return 0


def put(
    name: Name,
    text: Annotated[str, typer.Argument(metavar="VALUE", help="JSON where it parses as such, else text.")],
    home: HomeFolder = None,
) -> int:
    """Write one value to the config file. Comments stay, and a value that could not be used is not
    written."""
    folder, keys, value = home_of(home, os.environ), _place(name), value_of(text, name)
    if value is None:
        raise ConfigError(
            f"{name} cannot be nothing in a file",
            text,
            f"a value; fsm-agent config unset {name} takes it out",
        )
    document = _document(folder)
    group: Any = document
    for key in keys[:-1]:
        group = group.setdefault(key, tomlkit.table())
        if not isinstance(group, Mapping):
            raise ConfigError(f"{key} holds a value, not a table", name, "the name of a setting")
    group[keys[-1]] = value
    _write(folder, document)
    print(f"{name} = {clean(masked_url(text))}  in {folder / CONFIG}")
    _warn_of_environment(name)
    return 0


def drop(name: Name, home: HomeFolder = None) -> int:
    """Remove one value from the config file."""
    folder, keys = home_of(home, os.environ), _place(name)
    document = _document(folder)
    chain: list[Any] = [document]
    for key in keys:
        if not isinstance(chain[-1], Mapping) or key not in chain[-1]:
            raise ConfigError("this is not set in the config file", name, f"what {folder / CONFIG} holds")
        chain.append(chain[-1][key])
    for group, key in reversed(list(zip(chain[:-1], keys, strict=True))):
        if group[key] is chain[-1] or not group[key]:
            del group[key]
    _write(folder, document)
    print(f"{name} is no longer set in {folder / CONFIG}")
    return 0


def path(home: HomeFolder = None) -> int:
    """Print the path of the config file. It need not exist."""
    print(home_of(home, os.environ) / CONFIG)
    return 0


def _summary(config: Config) -> dict[str, Any]:
    own = [name for name in config.profiles if name not in PROFILES]
    learned = lines_of(learned_facts(config.path.parent, config))
    model = os.environ.get(MODEL_ENV) or config.model
    return {
        "file": f"{config.path}{'' if config.path.exists() else ' (not there; none is needed)'}",
        "model": model and f"{model} (from {MODEL_ENV if os.environ.get(MODEL_ENV) else CONFIG})",
        "known": _model_facts(config),
        "learned": learned,
        "fallbacks": [mask(str(entry["model"])) for entry in config.fallbacks if "model" in entry],
        "auxiliary": _auxiliary(config),
        "providers": [f"{name} at {mask(config.profiles[name].base_url or '')}" for name in own],
        "mcp servers": list(config.mcp.get("servers", {})),
    }


def _auxiliary(config: Config) -> list[str]:
    if not isinstance(config.auxiliary, Mapping):
        return [mask(str(entry["model"])) for entry in config.auxiliary if "model" in entry]
    return [
        f"{mask(str(entry['model']))} ({task})"
        for task, entries in config.auxiliary.items()
        for entry in entries
        if "model" in entry
    ]


def _model_facts(config: Config) -> str:
    """Describe the model in use; empty if none can be chosen, which ``doctor`` explains."""
    try:
        choice = config.chooser(plain_http=Settings.of(None, config.settings).credential.plain_http)
    except ConfigError:
        return ""
    return f"of {name_of(choice)}: {model_facts(choice)}"


def _rows(config: Config) -> list[dict[str, Any]]:
    now, environment = Settings.of(None, config.settings), from_environment()
    rows = []
    for name, setting in every_setting().items():
        keys = name.split(".")
        variable = f"{ENV_PREFIX}{'__'.join(keys).upper()}"
        origin = variable if _has(environment, keys) else CONFIG if _has(config.settings, keys) else DEFAULT
        row = {"setting": name, "value": _plain(now, keys), "default": _json(setting.default)}
        rows.append(row | {"allowed": setting.allowed, "from": origin})
    return rows


def _has(group: Any, keys: list[str]) -> bool:
    """Return whether there is a value for this name, or for a group around it that was given as one
    figure."""
    for key in keys:
        if not isinstance(group, Mapping):
            return True
        if key not in group:
            return False
        group = group[key]
    return True


def _plain(settings: BaseModel, keys: list[str]) -> Any:
    value: Any = settings
    for key in keys:
        value = getattr(value, key)
    return _json(value)


def _json(value: Any) -> Any:
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else to_jsonable_python(value)


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> WholeTable:
    table = WholeTable(breaks=36, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, style="bold" if name == "setting" else "")
    for row in rows:
        shown = (
            _format_value(row[name]) if name in ("value", "default") else str(row[name]) for name in columns
        )
        table.add_row(*(Text(clean(text), "" if row["from"] != DEFAULT else "dim") for text in shown))
    return table


def _format_value(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value)


def _place(name: str) -> list[str]:
    """Return the path of a name in the file. Settings have their own table; ``mcp.servers`` are servers,
    other ``mcp`` names are settings."""
    keys = name.split(".")
    top = keys[0] in KEYS and (keys[0] != "mcp" or keys[1:2] == ["servers"])
    keys = keys if top else ["settings", *keys]
    if keys[0] == "settings" and not any(_begins(known.split("."), keys[1:]) for known in every_setting()):
        raise _unknown(name)
    return keys


def _begins(known: list[str], keys: list[str]) -> bool:
    """Return whether ``keys`` name this setting, a group that holds it, or an entry of it if it is a
    table."""
    return bool(keys) and (known[: len(keys)] == keys or keys[: len(known)] == known)


def _unknown(name: str) -> ConfigError:
    from difflib import get_close_matches

    near = get_close_matches(name, every_setting(), n=3, cutoff=0.5)
    allowed = " or ".join(near) if near else "a name that fsm-agent config list shows"
    return ConfigError(f"unknown setting {name}", None, allowed)


def _document(folder: Path) -> tomlkit.TOMLDocument:
    config_of(folder)  # an invalid file is for its author to fix
    try:
        return tomlkit.parse((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return tomlkit.document()
    except ParseError as error:
        raise ConfigError(
            f"the config file is not TOML: {error}", str(folder / CONFIG), "see https://toml.io"
        ) from None


def _write(folder: Path, document: tomlkit.TOMLDocument) -> None:
    try:
        text = tomlkit.dumps(document)
        check_config(folder / CONFIG, document.unwrap())
        private_folder(folder)
        replace_file(folder / CONFIG, text.encode(), mode=0o600)
    except (TOMLKitError, ValueError) as error:
        raise ConfigError(
            f"this is nothing that TOML can hold ({error})",
            None,
            "a text, a number, true, false, a list or a table",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the config file cannot be written ({error.strerror})", str(folder / CONFIG), "a writable file"
        ) from None


def _warn_of_environment(name: str) -> None:
    variable = MODEL_ENV if name == "model" else f"{ENV_PREFIX}{name.replace('.', '__').upper()}"
    if os.environ.get(variable):
        print(f"fsm-agent: {variable} is set and wins over the file", file=sys.stderr)
