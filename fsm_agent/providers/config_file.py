"""``config.toml`` in the home directory: the defaults of every agent of this home.

::

    model = "work:qwen3-coder"                  # where no argument and no FSM_AGENT_MODEL names one
    fallbacks = ["openai:gpt-5-mini", { model = "local:phi", base_url = "http://127.0.0.1:8080/v1" }]

    [settings]                                  # names and ranges: ``fsm-agent config list``
    max_iterations = 40
    compression.threshold = 0.6

    [providers.work]                            # then "work:<model>" is a model
    base_url = "https://llm.example.org/v1"
    key_env = "WORK_API_KEY"

    [mcp.servers.time]                          # see ``fsm_agent.toolsets.mcp``
    command = ["mcp-server-time"]

An argument wins over the environment, the environment over this file, and the file over the defaults. Keys of
providers do not belong here: ``key_env`` names the variable that holds one, and ``api_key =
"keyring:service/name"`` the keyring. (Why: decision 79.)
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fsm_agent.conversation.effects import ApiMode
from fsm_agent.errors import ConfigError
from fsm_agent.providers.credentials import FORM, PREFIX, is_kept
from fsm_agent.providers.profiles import PROFILES, Auth, Profile, is_nearby, local_models
from fsm_agent.settings import Settings, Tokens
from fsm_agent.settings.errors import words_at
from fsm_agent.support.redaction import environment_keys, keep_secret, secrets_among

if TYPE_CHECKING:
    from fsm_agent.providers.choose import Choice

# Custom providers, from the tables ``[providers.NAME]`` of the config file.


NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")


class OwnProvider(BaseModel):
    """A custom provider. ``like``: the known provider whose manners it shares; by default only those of its
    wire. ``key_env``: the variable that contains its key; ``api_key``: a reference to the key in the keyring
    (``keyring:service/name``); without either it needs no key. ``auth``: the header that carries the key, if
    its wire knows several. ``api_version``: for an address like Azure's. ``context_window`` in tokens, of
    every model that ``windows`` (prefixes of names → tokens) does not list. ``local``: slow answers are
    normal; by default true for a nearby address."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(pattern=r"^https?://[^\s/]+")
    like: str | None = None
    api_mode: ApiMode | None = None
    key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    api_key: str | None = Field(default=None, pattern=r"^keyring:.+/.+$")
    auth: Auth | None = None
    api_version: str | None = None
    context_window: Tokens | None = None
    windows: dict[str, Tokens] = Field(default_factory=dict)
    local: bool | None = None

    def profile(self, name: str) -> Profile:
        """Return the profile of this provider under ``name``."""
        base = PROFILES[self.like] if self.like else Profile(name)
        return replace(
            base,
            name=name,
            manners=base.manners or self.like or "",
            base_url=self.base_url,
            base_url_env=None,
            key_env=self.key_env,
            key=self.api_key,
            needs_key=bool(self.key_env or self.api_key),
            local=is_nearby(self.base_url) if self.local is None else self.local,
            in_process=False,
            default_model=None,
            model_windows=(*self.windows.items(), *base.model_windows),
            api_mode=self.api_mode or base.api_mode,
            auth=self.auth or base.auth,
            api_version=self.api_version or base.api_version,
            api_version_env=None if self.api_version else base.api_version_env,
            default_window=self.context_window or base.default_window,
        )


def profiles_of(tables: Mapping[str, Any]) -> Mapping[str, Profile]:
    """Return the known providers and ``tables``. Raises ``ConfigError`` that names the table and the key."""
    return (
        {**PROFILES, **{name: _profile(name, table) for name, table in tables.items()}}
        if tables
        else PROFILES
    )


def _profile(name: str, table: Any) -> Profile:
    where = f"providers.{name}"
    if not NAME.fullmatch(name) or name in PROFILES:
        taken = name in PROFILES
        allowed = (
            "a name that is not taken" if taken else "up to 31 small letters, digits, - and _, a letter first"
        )
        raise ConfigError(
            f"[{where}] cannot have this name{', which is a known provider' if taken else ''}", name, allowed
        )
    try:
        own = OwnProvider.model_validate(table)
    except ValidationError as error:
        raise _explain(where, error) from None
    if own.like is not None and own.like not in PROFILES:
        raise ConfigError(f"{where}.like names an unknown provider", own.like, ", ".join(PROFILES))
    return own.profile(name)


def _explain(where: str, error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    key = ".".join((where, *(str(part) for part in first["loc"])))
    if first["loc"] == ("api_key",):
        allowed = f"key_env, which names the variable that holds it, or {FORM}"
        return ConfigError(f"{key} holds a key", "api_key", allowed)
    if first["type"] == "extra_forbidden":
        return ConfigError(f"unknown key {key}", None, ", ".join(OwnProvider.model_fields))
    if first["type"] == "missing":
        return ConfigError(
            f"{key} is missing", None, "the address of the server, for example https://llm.example.org/v1"
        )
    given = None if isinstance(first["input"], Mapping) else first["input"]
    return ConfigError(f"{key} cannot be used", given, words_at(OwnProvider, first["loc"], first["msg"]))


CONFIG = "config.toml"
MAX_BYTES = 1_000_000
KEYS = ("model", "fallbacks", "auxiliary", "settings", "providers", "mcp")


@dataclass(frozen=True, slots=True)
class Config:
    """A config file. ``fallbacks`` and ``auxiliary``: entries like those of the argument ``fallbacks`` of
    ``Agent``; those of ``auxiliary`` may be grouped by task. ``profiles``: the known providers and the file's
    own. ``mcp``: see ``fsm_agent.toolsets.mcp.config``."""

    path: Path
    model: str | None = None
    fallbacks: tuple[Mapping[str, Any], ...] = ()
    auxiliary: tuple[Mapping[str, Any], ...] | Mapping[str, tuple[Mapping[str, Any], ...]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=lambda: PROFILES)
    mcp: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chooser(self) -> Callable[..., Choice]:
        """``fsm_agent.providers.choose.choose`` in this environment, with the file's model and providers."""
        from fsm_agent.providers.choose import choose  # most commands choose no model

        return partial(
            choose, env=os.environ, probe=local_models, profiles=self.profiles, configured=self.model
        )


def config_of(home: Path) -> Config:
    """Read the config file of a home directory; return an empty config without a file. Mask its keys and
    those of the environment from now on. Raises ``ConfigError`` that names the file, the problem, and what is
    allowed."""
    path = home / CONFIG
    return _config_of(path, _read(path), frozenset(os.environ.items()))


@lru_cache(maxsize=16)
def _config_of(path: Path, text: str, environment: frozenset[tuple[str, str]]) -> Config:
    """Parse the text of a config file. Cached, because a server that makes an agent for each turn would parse
    it each time."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config file is not TOML: {error}", str(path), "see https://toml.io") from None
    try:
        config = check_config(path, raw) if raw else Config(path)
    except ConfigError as error:
        raise ConfigError(f"in {path}: {error}") from None
    keep_secret(_secrets_of(config, dict(environment)))
    return config


def variables_of(config: Config) -> Iterator[str]:
    """Yield the names of the variables that contain the file's keys: ``key_env`` of providers, and ``${VAR}``
    of MCP servers, whether an agent uses them or not."""
    yield from (profile.key_env for profile in config.profiles.values() if profile.key_env)
    yield from re.findall(r"\$\{(\w+)", json.dumps(config.mcp, default=str))


def _secrets_of(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    yield from environment_keys(environment)
    variables = (profile.key_env for profile in config.profiles.values())
    yield from (environment[name] for name in variables if name and environment.get(name))
    settings = Settings.of(None, config.settings)
    yield from settings.request.headers.values()
    yield from database_secrets(settings.store.database)
    for server in config.mcp.get("servers", {}).values():
        if isinstance(server, Mapping):
            yield from secrets_among(_pairs(server, "env"), environment)
            yield from secrets_among(_pairs(server, "headers"), environment, every=True)


def database_secrets(address: str | None) -> Iterator[str]:
    """Yield the address of a database, and its password both as written and URL-decoded."""
    if address and (password := urlsplit(address).password):
        yield from (address, password, unquote(password))


def _pairs(table: Mapping[str, Any], name: str) -> Mapping[str, str]:
    given = table.get(name)
    return given if isinstance(given, Mapping) else {}


def check_config(path: Path, raw: Mapping[str, Any]) -> Config:
    """Check the tables of a config file and return its values. Raises ``ConfigError``."""
    if unknown := [name for name in raw if name not in KEYS]:
        hint = "; settings belong under [settings]" if unknown[0] in Settings.model_fields else ""
        raise ConfigError(f"unknown key {unknown[0]}", None, ", ".join(KEYS) + hint)
    model = raw.get("model")
    if model is not None and not isinstance(model, str):
        raise ConfigError("model has the wrong type", model, '"<provider>:<model>"')
    settings = _table(raw, "settings")
    Settings.of(settings)
    return Config(
        path,
        model=model,
        fallbacks=_entries(raw, "fallbacks"),
        auxiliary=_by_task(raw, "auxiliary"),
        settings=settings,
        profiles=profiles_of(_table(raw, "providers")),
        mcp=_table(raw, "mcp"),
    )


def _read(path: Path) -> str:
    """Return the text of the file; empty without a file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError("the config file is too large", str(path), f"up to {MAX_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(
            f"the config file cannot be read ({error.strerror})", str(path), "a readable file, or none"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("the config file cannot be read", str(path), "a text file in UTF-8") from None


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = raw.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name} has the wrong type", table, f"a table, [{name}]")
    return table


def _by_task(
    raw: Mapping[str, Any], name: str
) -> tuple[Mapping[str, Any], ...] | Mapping[str, tuple[Mapping[str, Any], ...]]:
    given = raw.get(name)
    if isinstance(given, Mapping):
        return {task: _entries(given, task) for task in given}
    return _entries(raw, name)


def _entries(raw: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the models in the order in which they are tried; a string is short for a table with only a
    model."""
    given = raw.get(name, [])
    if not isinstance(given, list) or not all(isinstance(one, (str, Mapping)) for one in given):
        raise ConfigError(
            f"{name} has the wrong type",
            given,
            'a list of "<provider>:<model>" or { model = …, base_url = … }',
        )
    entries = tuple({"model": one} if isinstance(one, str) else one for one in given)
    if not all(is_kept(entry.get("api_key", PREFIX)) for entry in entries):
        allowed = f"key_env in [providers.NAME], which names the variable that holds it, or {FORM}"
        raise ConfigError(f"{name} holds a key", "api_key", allowed)
    return entries
