"""From the options of a command line to an agent."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.agent import DEFAULT_TOOLSETS, Agent
from fsm_agent.errors import ConfigError
from fsm_agent.home import home_of
from fsm_agent.providers.choose import Choice, choose
from fsm_agent.providers.probe import local_models
from fsm_agent.settings import Settings
from fsm_agent.store import store_for
from fsm_agent.store.find import find_session


@dataclass(frozen=True, slots=True)
class Given:
    """What ``run`` and ``chat`` have in common. ``sets`` are ``nested.name=value`` texts; ``yes`` approves every tool;
    ``session`` is the one to go on in, as its user calls it."""

    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    home: str | None = None
    max_iterations: int | None = None
    sets: Sequence[str] = ()
    yes: bool = False
    session: str | None = None


def agent_of(given: Given, callbacks: object) -> tuple[Agent, Choice]:
    """The agent, and the model that was chosen with the reason why. Raises ``ConfigError``."""
    settings = settings_of(given.sets, given.max_iterations)
    choice = choose(given.model, given.base_url, given.api_key, env=os.environ, probe=local_models)
    if given.yes:  # of children too
        settings = settings.model_copy(update={"delegation": settings.delegation.model_copy(update={"approvals": "ask"})})
    asks = ("clarify",) if getattr(callbacks, "clarify", None) is not None else ()
    store = store_for(home_of(given.home, os.environ), settings.store.durability)
    agent = Agent(
        f"{choice.profile.name}:{choice.model}",
        base_url=choice.base_url,
        api_key=given.api_key,
        toolsets=(*DEFAULT_TOOLSETS, "delegate", *asks),
        settings=settings,
        home=given.home,
        session_id=None if given.session is None else find_session(store, given.session),
        callbacks=callbacks,
        store=store,
    )
    return agent, choice


def settings_of(sets: Sequence[str], max_iterations: int | None = None) -> Settings:
    """Settings from ``nested.name=value`` texts. Values are JSON where they can be read as such, else plain text."""
    values = nested(sets)
    if max_iterations is not None:
        values["max_iterations"] = max_iterations
    return Settings.of(values)


def nested(sets: Sequence[str]) -> dict[str, Any]:
    """The mapping that ``nested.name=value`` texts describe. Raises ``ConfigError`` for a text that is not of this form."""
    values: dict[str, Any] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise ConfigError("--set cannot be read", text, "nested.name=value, for example --set budget.grace_call=false")
        group = values
        for part in path[:-1]:
            group = group.setdefault(part, {})
            if not isinstance(group, dict):
                raise ConfigError("--set names both a setting and a part of it", text, "one of the two")
        group[path[-1]] = _value(value.strip())
    return values


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
