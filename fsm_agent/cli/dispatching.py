"""The settings of a command that queues turns, or runs queued ones."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fsm_agent.cli.given import settings_of
from fsm_agent.providers.config_file import config_of
from fsm_agent.settings.model import Settings
from fsm_agent.support.home import home_of


def settings_for(
    home: str | None, sets: Sequence[str] = (), database_url: str | None = None, **dispatch: object
) -> Settings:
    """The settings of a home with what a command line says: ``NAME=VALUE`` texts, the address of the
    database, and values of the group ``dispatch`` by name, ``None`` for those that were not given. Raises
    ``ConfigError``."""
    given = [f"dispatch.{name}={value}" for name, value in dispatch.items() if value is not None]
    given += [] if database_url is None else [f"store.database_url={database_url}"]
    return settings_of([*sets, *given], file=config_of(home_of(home, os.environ)).settings)
