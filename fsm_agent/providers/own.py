"""Providers of the user's own, from the tables ``[providers.NAME]`` of the config file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fsm_agent.conversation.effects import ApiMode
from fsm_agent.errors import ConfigError
from fsm_agent.providers.kept_keys import FORM
from fsm_agent.providers.probe import is_nearby
from fsm_agent.providers.profiles import PROFILES, Auth, Profile
from fsm_agent.settings.model import Tokens
from fsm_agent.settings.setting_docs import words_at

NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")


class OwnProvider(BaseModel):
    """A server at an address of its own. ``like``: the known provider whose manners it shares, default none
    but those of its wire. ``key_env``: the variable that holds its key; ``api_key``: the keyring that does
    (``keyring:service/name``); without either it needs none. ``auth``: the header that carries the key, where
    its wire knows several. ``api_version``: of an address like Azure's. ``context_window`` in tokens, of
    every model that ``windows`` (beginnings of names → tokens) does not name. ``local``: slow answers are
    normal; default for an address nearby."""

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
    """The known providers, and those of ``tables``. Raises ``ConfigError`` that names the table and the
    key."""
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
        raise _explained(where, error) from None
    if own.like is not None and own.like not in PROFILES:
        raise ConfigError(f"{where}.like names an unknown provider", own.like, ", ".join(PROFILES))
    return own.profile(name)


def _explained(where: str, error: ValidationError) -> ConfigError:
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
