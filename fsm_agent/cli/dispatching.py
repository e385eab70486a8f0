"""Which dispatcher a command talks to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fsm_agent.cli.given import settings_of
from fsm_agent.dispatch.in_process import InProcess
from fsm_agent.dispatch.port import Dispatcher
from fsm_agent.dispatch.submit import DIGEST
from fsm_agent.errors import ConfigError
from fsm_agent.providers.config_file import config_of
from fsm_agent.settings.model import DispatchSettings, Settings
from fsm_agent.support.home import home_of
from fsm_agent.support.installation import install_command


def settings_for(
    home: str | None, sets: Sequence[str] = (), database_url: str | None = None, **dispatch: object
) -> Settings:
    """The settings of a home with what a command line says: ``NAME=VALUE`` texts, the address of the
    database, and values of the group ``dispatch`` by name, ``None`` for those that were not given. Raises
    ``ConfigError``."""
    given = [f"dispatch.{name}={value}" for name, value in dispatch.items() if value is not None]
    given += [] if database_url is None else [f"store.database_url={database_url}"]
    return settings_of([*sets, *given], file=config_of(home_of(home, os.environ)).settings)


def dispatcher_of(settings: DispatchSettings) -> Dispatcher:
    """The dispatcher that the settings name; nothing is connected yet. Raises ``ConfigError`` when the extra
    is not installed."""
    if settings.temporal is None:
        return InProcess()
    try:
        from fsm_agent.dispatch.temporal.dispatcher import TemporalDispatcher
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("temporalio"):
            raise
        raise ConfigError(
            "Temporal needs an extra that is not installed",
            settings.temporal,
            install_command("temporal"),
        ) from None
    return TemporalDispatcher(settings.temporal, settings.namespace, settings.heartbeat, DIGEST)
