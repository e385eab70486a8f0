"""Where a server is: its config with every ``${VAR}`` replaced, the environment it is given, and which values
are secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fsm_agent.support.bare_environment import bare_environment
from fsm_agent.toolsets.mcp.config import ServerConfig
from fsm_agent.toolsets.mcp.process import Launch

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie|session", re.IGNORECASE)


class Unset(Exception):
    """A variable that the config names has no value here; the text says which."""


def expanded(text: str, environment: Mapping[str, str], found: set[str]) -> str:
    """The text with its variables replaced; their values are added to ``found``. Raises ``Unset``."""

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        given = environment.get(name) or default
        if given is None:
            raise Unset(f"${{{name}}} is not set in the environment")
        found.add(given)
        return given

    return _VARIABLE.sub(value, text)


def named_in(config: ServerConfig) -> set[str]:
    """The variables that ``expanded`` would look up for a server."""
    texts = (*config.env.values(), *config.headers.values(), config.url or "")
    return {match["name"] for text in texts for match in _VARIABLE.finditer(text)}


def all_expanded(words: Mapping[str, str], environment: Mapping[str, str], found: set[str]) -> dict[str, str]:
    """Return the words with variables replaced by their values; ``found`` takes the values used."""
    return {name: expanded(text, environment, found) for name, text in words.items()}


def secret_values(words: Mapping[str, str]) -> Iterable[str]:
    """Those values whose names sound like secrets. Of ``Bearer x`` the ``x`` is one too."""
    for name, value in words.items():
        if _SECRET_NAME.search(name):
            yield value
            yield from value.split()[1:]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Either a program to launch or an address. ``secrets`` must not be shown, ``roots`` are told to the
    server."""

    launch: Launch | None
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    roots: tuple[Path, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


def endpoint_of(config: ServerConfig, workdir: Path, environment: Mapping[str, str]) -> Endpoint:
    """Raises ``Unset`` when the config names a variable that has no value."""
    found: set[str] = set()
    own = all_expanded(config.env, environment, found)
    headers = all_expanded(config.headers, environment, found)
    url = expanded(config.url or "", environment, found)
    secrets = frozenset(value for value in (*found, *secret_values(own), *secret_values(headers)) if value)
    named = config.roots if config.roots is not None else (".",)
    roots = tuple((workdir / Path(root).expanduser()).resolve() for root in named)
    if config.command is None:
        return Endpoint(None, url, headers, roots, secrets)
    cwd = workdir / Path(config.cwd or ".").expanduser()
    launch = Launch(config.command, config.args, {**bare_environment(environment), **own}, cwd)
    return Endpoint(launch, roots=roots, secrets=secrets)
