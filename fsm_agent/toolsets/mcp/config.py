"""The user's configuration of MCP servers: ``[mcp.servers.NAME]`` in the config file, or the same as a dict,
and the logins to servers. Independent of the SDK."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fsm_agent.errors import ConfigError
from fsm_agent.providers.config_file import config_of
from fsm_agent.request import Effect
from fsm_agent.settings import name_taken
from fsm_agent.settings.errors import words_at
from fsm_agent.support.files import FILE, LOGINS, private_folder, replace_file
from fsm_agent.support.redaction import keep_secret, mask
from fsm_agent.tools.decorator import Approval

NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]|_(?!_)){0,30}(?<!_)")
"""Valid server names. No double underscore, because that separates the server from its tool's name."""
HERE = ("localhost", "127.0.0.1", "::1")

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _words(value: Any) -> Any:
    """Convert TOML numbers and booleans to the text that an environment or a header needs."""
    if not isinstance(value, Mapping):
        return value
    return {name: _word(item) for name, item in value.items()}


def _word(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _read_switch(value: Any) -> Any:
    """Read ``true`` as an empty table and ``false`` as none."""
    return {} if value is True else None if value is False else value


Words = Annotated[dict[str, str], BeforeValidator(_words)]


class _McpModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolRule(_McpModel):
    """A rule for the server's tools whose name matches a pattern; ``None`` defers to the rule of the
    server."""

    approval: Approval | None = None
    effect: Effect | None = None
    timeout: Seconds | None = None


class OAuth(_McpModel):
    """How to log in to a server if its own metadata is not enough. ``client_id`` and ``client_secret``: of a
    client registered there before, the secret as ``${VAR}``; ``client_metadata_url``: an https address that
    describes this client. ``callback_port``: of this machine, for the browser's redirect; 0 for any. The
    server determines the scopes. ``issuer``: the authorization server that knows the client and its secret;
    with it no person logs in, and the secret is sent nowhere else. ``private_key``: in place of the secret, a
    key in PEM as ``${VAR}`` that signs each token request with ``algorithm``; it is never sent."""

    client_id: str | None = None
    client_secret: str | None = None
    client_metadata_url: str | None = None
    callback_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    issuer: str | None = None
    private_key: str | None = None
    algorithm: Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"] = "RS256"

    @property
    def secret(self) -> str | None:
        """The client's credential, as the user wrote it."""
        return self.private_key or self.client_secret

    @model_validator(mode="after")
    def _without_a_person(self) -> Self:
        if self.private_key and (self.issuer is None or self.client_secret):
            raise name_taken(
                "a private_key " + ("and a client_secret" if self.issuer else "without an issuer"),
                "a private_key with issuer and client_id, and without client_secret",
            )
        if self.issuer is None:
            return self
        if not (self.client_id and self.secret):
            raise name_taken(
                "an issuer alone", "an issuer with client_id, and with client_secret or private_key"
            )
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in HERE):
            raise name_taken(f"issuer {mask(self.issuer)}", "https://, or http:// to this machine")
        return self


class ServerConfig(_McpModel):
    """One server: a ``command`` (stdio) or a ``url`` (streamable HTTP).

    ``env`` is added to a small safe environment; ``env``, ``headers`` and ``url`` may hold ``${VAR}`` or
    ``${VAR:-default}``. ``cwd`` defaults to the agent's working directory. ``roots`` are the directories that
    the server may know: default the agent's working directory; an empty list names no directory.
    ``trust``: believe what the server says about its tools: which only read, which may be repeated.
    ``approval`` and ``effect`` of its tools win over that; without either its tools ask and are ``unsafe``.
    ``tools``: rules by pattern, of which the first that matches and says something counts. ``include`` and
    ``exclude`` are patterns of names of tools.
    ``timeout``: seconds of one call. ``plain_http``: send to a host that is not this machine without TLS.
    ``oauth``: ``true`` or a table: log in with ``fsm-agent mcp login NAME``.
    """

    command: str | None = None
    args: tuple[str, ...] = ()
    env: Words = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Words = Field(default_factory=dict)
    plain_http: bool = False
    oauth: Annotated[OAuth | None, BeforeValidator(_read_switch)] = None
    roots: tuple[str, ...] | None = None
    trust: bool = False
    approval: Approval | None = None
    effect: Effect | None = None
    timeout: Seconds | None = None
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    tools: dict[str, ToolRule] = Field(default_factory=dict)
    enabled: bool = True

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.command) == bool(self.url):
            both = "a command and a url" if self.url else "neither a command nor a url"
            raise name_taken(both, "either a command or a url")
        stdio = {"args", "env", "cwd"} & self.model_fields_set
        if self.url and stdio:
            raise name_taken(f"{min(stdio)} beside a url", f"{min(stdio)} beside a command")
        if self.command and (http := {"headers", "plain_http", "oauth"} & self.model_fields_set):
            raise name_taken(f"{min(http)} beside a command", f"{min(http)} beside a url")
        if self.url:
            self._check_url(self.url)
        return self

    def _check_url(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise name_taken(
                f"url {mask(url)}", "a url that begins with https:// or http:// and names a host"
            )
        if parts.scheme == "http" and parts.hostname not in HERE and not self.plain_http:
            allowed = "https://, http:// to this machine, or plain_http = true to send without TLS"
            raise name_taken(f"url {mask(url)}", allowed)

    def wants(self, tool: str) -> bool:
        """Return whether the tool with this name on the server is offered."""
        return _any(self.include, tool) and not _any(self.exclude, tool)

    def rule(self, tool: str) -> ToolRule:
        """Return the user's rule for a tool: each value by the first pattern that sets it, else by the
        server."""
        own = [rule for pattern, rule in self.tools.items() if fnmatchcase(tool, pattern)]

        def first(field: Literal["approval", "effect", "timeout"]) -> Any:
            said = (value for rule in (*own, self) if (value := getattr(rule, field)) is not None)
            return next(said, None)

        return ToolRule(approval=first("approval"), effect=first("effect"), timeout=first("timeout"))


def servers_of(given: Mapping[str, Any] | None, home: Path) -> dict[str, ServerConfig]:
    """Return the enabled servers by name: those of ``given``, else those of the config file in ``home``.

    ``given`` maps names to tables, as ``[mcp.servers]`` does, or is the ``[mcp]`` table around that. Raises
    ``ConfigError`` that names the server and the key."""
    tables = _of_file(home) if given is None else given
    if not isinstance(tables, Mapping):
        raise ConfigError("mcp has the wrong type", type(tables).__name__, "a dict of servers by name")
    if (
        set(tables) == {"servers"}
        and isinstance(inner := tables["servers"], Mapping)
        and not {"command", "url"} & set(inner)
    ):
        tables = inner
    found = {str(name): _server(str(name), table) for name, table in tables.items()}
    return {name: server for name, server in found.items() if server.enabled}


def _of_file(home: Path) -> Any:
    group = config_of(home).mcp
    if unknown := sorted(set(group) - {"servers"}):
        raise ConfigError(
            "[mcp] in the config file cannot be used", ", ".join(unknown), "[mcp.servers.NAME] tables"
        )
    return group.get("servers", {})


def _server(name: str, table: Any) -> ServerConfig:
    if not NAME.fullmatch(name):
        allowed = (
            "up to 31 letters, digits, dashes and single underscores, beginning and ending with none of the"
            " last"
        )
        raise ConfigError("the name of an MCP server cannot be used", name, allowed)
    if isinstance(table, ServerConfig):
        return table
    if not isinstance(table, Mapping):
        raise ConfigError(f"MCP server {name} has the wrong type", table, "a table with a command or a url")
    try:
        return ServerConfig.model_validate(dict(table))
    except ValidationError as error:
        raise _explain(name, error) from None


def _explain(name: str, error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    where = ".".join(("mcp.servers", name, *(str(part) for part in first["loc"])))
    if first["type"] == "extra_forbidden":
        model = ToolRule if len(first["loc"]) > 1 else ServerConfig
        return ConfigError(f"unknown key {where}", None, ", ".join(model.model_fields))
    if first["type"] == "taken":
        return ConfigError(f"{where} cannot be used", first["ctx"]["given"], first["ctx"]["allowed"])
    given = None if isinstance(first["input"], Mapping) else _format_given(first["loc"], first["input"])
    return ConfigError(f"{where} cannot be used", given, words_at(ServerConfig, first["loc"], first["msg"]))


def _format_given(loc: tuple[int | str, ...], value: Any) -> str:
    """Format a given value, unless it may be a secret."""
    return "***" if loc[:1] in (("env",), ("headers",), ("oauth",)) else mask(str(value))


def _any(patterns: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# ----------------------------------------------------------------------------------------------------
# Storage of logins: the machine's keyring, or without one a file that only its owner can read.


SERVICE = "fsm-agent"
"""Service name of the logins in the keyring."""
KEYRING = "the keyring"
_SECRETS = ("access_token", "refresh_token", "client_secret")


class Login:
    """The login of one home to one server at one address. Its content is JSON, and is masked in all output
    from then on. ``secrets`` collects all that it has held."""

    def __init__(self, home: Path, server: str, url: str, secrets: set[str] | None = None) -> None:
        digest = hashlib.sha256(f"{home}\0{url}".encode()).hexdigest()[:16]
        self.secrets = set[str]() if secrets is None else secrets
        self._name = f"mcp/{server}/{digest}"
        self._path = home / LOGINS / f"{server}-{digest}.json"

    def read(self) -> dict[str, Any]:
        """Return the stored login; empty if it is missing or unreadable."""
        text = _in_keyring("get_password", self._name)[1]
        if text is None and self._path.is_file():
            text = self._path.read_text(encoding="utf-8", errors="replace")
        try:
            kept = json.loads(text or "{}")
        except ValueError:
            kept = {}
        found: dict[str, Any] = kept if isinstance(kept, dict) else {}
        self._keep(found)
        return found

    def write(self, kept: dict[str, Any]) -> str:
        """Store the login; return where."""
        self._keep(kept)
        text = json.dumps(kept)
        if _in_keyring("set_password", self._name, text)[0]:
            self._path.unlink(missing_ok=True)
            return KEYRING
        private_folder(self._path.parent)
        replace_file(self._path, text.encode(), FILE)
        return str(self._path)

    def forget(self) -> bool:
        """Delete the login; return whether there was one."""
        there = bool(self.read())
        self._path.unlink(missing_ok=True)
        _in_keyring("delete_password", self._name)
        return there

    def _keep(self, kept: dict[str, Any]) -> None:
        self.secrets.update(_secrets_in(kept))
        keep_secret(self.secrets)


def _secrets_in(kept: dict[str, Any]) -> list[str]:
    tables = [one for one in kept.values() if isinstance(one, dict)]
    return [str(table[name]) for table in tables for name in _SECRETS if table.get(name)]


def _in_keyring(do: str, *words: str) -> tuple[bool, str | None]:
    """Return whether the keyring succeeded, and its answer."""
    if find_spec("keyring") is None:
        return False, None
    import keyring
    from keyring.errors import KeyringError

    try:
        return True, getattr(keyring, do)(SERVICE, *words)
    except KeyringError:
        return False, None
