"""Where a server is, with every variable of its config replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fsm_agent.toolsets.mcp.config import ServerConfig
from fsm_agent.toolsets.mcp.process import Launch
from fsm_agent.toolsets.mcp.variables import all_expanded, expanded, safe_environment, secret_values


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
    launch = Launch(config.command, config.args, {**safe_environment(environment), **own}, cwd)
    return Endpoint(launch, roots=roots, secrets=secrets)
