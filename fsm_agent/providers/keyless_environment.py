"""The environment of the commands that a model asks for: a person's own, without the key of any provider.

Hidden are the variables that a known provider's account is set by, those whose names end as names of keys do,
those that the config file names (``key_env``, ``${VAR}`` of an MCP server), and those that hold a key which
an agent of this process uses, whatever they are called."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from fsm_agent.providers.profiles import PROFILES
from fsm_agent.settings.model import ENV_PREFIX
from fsm_agent.support.bare_environment import PASSED_ON
from fsm_agent.support.redaction import KEYS, keep_secret

_KEY = "_API_KEY"
ACCOUNTS = (
    ENV_PREFIX,
    *sorted(
        {row.key_env.removesuffix(_KEY) + "_" for row in PROFILES.values() if row.key_env and row.needs_key}
    ),
)
"""How the variables begin that set the account of a provider: ``OPENAI_``, ``ANTHROPIC_`` …"""
ENDS = ("API_KEY", "APIKEY", "_OAUTH_TOKEN", "_HEADERS")
KEY_VARIABLES: set[str] = set()
"""Variables that no command may see, by name, besides those that are known by their form."""
SHORTEST = 8
"""Characters of a key that is looked for in values; a shorter one is a placeholder like "none"."""


def hide_from_children(variables: Iterable[str] = (), keys: Iterable[str] = ()) -> None:
    """Keep these variables, and those whose values hold one of these keys, from every command that this
    process starts from now on, and the keys out of all that it shows, logs and exports."""
    KEY_VARIABLES.update(name for name in variables if name not in PASSED_ON)
    keep_secret(keys)


def keyless_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``environment`` without the variables that hold keys."""
    return {name: value for name, value in environment.items() if not _hidden(name, value)}


def _hidden(name: str, value: str) -> bool:
    return (
        name in KEY_VARIABLES
        or name.upper().startswith(ACCOUNTS)
        or name.upper().endswith(ENDS)
        or (name not in PASSED_ON and any(key in value for key in tuple(KEYS) if len(key) >= SHORTEST))
    )
