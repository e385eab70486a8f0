"""Settings, telemetry and options of an agent, built from the options of a command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.agent import Agent
from fsm_agent.cli.arguments import nest_settings, tools_of
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.sessions import store_of
from fsm_agent.options import DEFAULT_TOOLSETS, AgentOptions, by_task
from fsm_agent.providers.choose import Choice
from fsm_agent.providers.config_file import Config, config_of
from fsm_agent.sessions.store.stored_sessions import find_session
from fsm_agent.settings import ENV_PREFIX, Settings, unknown_variables
from fsm_agent.settings.errors import about_unknown
from fsm_agent.support.files import home_of

STARTS, ENDS = "OTEL_EXPORTER_OTLP_", "ENDPOINT"
MISSING = "fsm-agent: {name} is set, but nothing is sent: {needs}"


def let_report(settings: Settings) -> None:
    """Let agents of the user's program report to OpenTelemetry if it is configured. Raises
    ``ConfigError``."""
    if telemetry_of(settings):
        os.environ.setdefault(f"{ENV_PREFIX}TELEMETRY__ENABLED", "true")


def telemetry_of(settings: Settings) -> bool | None:
    """Set up the exporters of OpenTelemetry, and return whether turns are reported; ``None`` leaves it to the
    settings. Raises ``ConfigError`` for an unsupported protocol."""
    if settings.telemetry.enabled is False or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    name = next((one for one in os.environ if one.startswith(STARTS) and one.endswith(ENDS)), "")
    if not os.environ.get(name):
        return None
    try:
        from fsm_agent.telemetry.export import set_up
    except ImportError:
        from fsm_agent.support.installation import install_command

        print(MISSING.format(name=name, needs=install_command("otel")), file=sys.stderr)
        return None
    set_up(os.environ)
    return True


def agent_of(given: CliOptions, callbacks: object) -> tuple[Agent, Choice]:
    """Return the agent, and the chosen model with the reason for the choice. Raises ``ConfigError``."""
    options, choice = options_of(given, callbacks)
    return Agent.of(options), choice


def options_of(given: CliOptions, callbacks: object) -> tuple[AgentOptions, Choice]:
    """Return the options for ``agent_of``, and the chosen model. Raises ``ConfigError``."""
    home = home_of(given.home, os.environ)
    config = config_of(home)
    settings = settings_of(_limit_settings(given), given.max_iterations, config.settings)
    plain = settings.credential.plain_http
    choice = config.chooser(given.model, given.base_url, given.api_key, plain_http=plain)
    if given.yes:  # applies to children, too
        settings = settings.model_copy(
            update={"delegation": settings.delegation.model_copy(update={"approvals": "ask"})}
        )
    answerable = getattr(callbacks, "clarify", None) is not None or settings.approval.unanswered == "suspend"
    asks = ("clarify",) if answerable else ()
    store = store_of(given.home, settings)
    options = AgentOptions(
        model=f"{choice.profile.name}:{choice.model}",
        base_url=choice.base_url,
        api_key=given.api_key,
        tools=tools_of(given.tools),
        toolsets=(*DEFAULT_TOOLSETS, "learn", "delegate", *asks, *_sides(config)),
        settings=settings,
        home=home,
        session_id=None if given.session is None else find_session(store, given.session),
        callbacks=callbacks,
        store=store,
        source=given.source,
        telemetry=telemetry_of(settings),
    )
    return options, choice


def _sides(config: Config) -> list[str]:
    """Return the toolsets that query another model, if the config file has models for them."""
    models = by_task(config.auxiliary)
    return [name for name, task in (("ask", "web"), ("vision", "vision")) if models[task]]


def _limit_settings(given: CliOptions) -> list[str]:
    """Return the ``name=value`` texts, followed by the limits of a turn and its children."""
    limits = {"usd": given.max_cost, "tokens": given.max_tokens, "seconds": given.max_seconds}.items()
    return [*given.sets, *(f"limits.tree.{name}={value}" for name, value in limits if value is not None)]


def settings_of(
    sets: Sequence[str], max_iterations: int | None = None, file: Mapping[str, Any] | None = None
) -> Settings:
    """Build settings from ``nested.name=value`` texts, over ``file``, the settings of the config file. Print
    a line for each environment variable that looks like a setting but is not one."""
    for name in unknown_variables():
        print(f"fsm-agent: {about_unknown(name)}", file=sys.stderr)
    values = nest_settings(sets)
    if max_iterations is not None:
        values["max_iterations"] = max_iterations
    return Settings.of(values, file)


def settings_for(
    home: str | None, sets: Sequence[str] = (), database_url: str | None = None, **dispatch: object
) -> Settings:
    """Return the settings of a home, overridden by a command line: ``NAME=VALUE`` texts, the address of the
    database, and values of the group ``dispatch`` by name, ``None`` for omitted ones. Raises
    ``ConfigError``."""
    given = [f"dispatch.{name}={value}" for name, value in dispatch.items() if value is not None]
    given += [] if database_url is None else [f"store.database_url={database_url}"]
    return settings_of([*sets, *given], file=config_of(home_of(home, os.environ)).settings)
