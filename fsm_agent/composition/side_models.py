"""The models for side work: which of them do which task, and in what order they are tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from fsm_agent.composition.options import AgentOptions
from fsm_agent.errors import ConfigError

TASKS = ("summary", "web", "vision", "title")
"""Summaries of compactions; questions about pages of the web, and about images; titles of sessions."""
Specs = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None
"""One entry like those of ``fallbacks``, or a list of them; a text is short for one with only a model."""
ENTRY = ("model", "base_url", "api_key", "api_mode", "context_window")


def by_task(given: Specs) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the entries for each task. Entries that name none are for all but titles, which nobody needs;
    the model in use is tried after them. Raises ``ConfigError`` for a task that nothing asks for."""
    if isinstance(given, str) or not isinstance(given, Mapping) or "model" in given:
        return dict.fromkeys(TASKS, _listed(given)) | {"title": ()}
    if unknown := sorted(set(given) - set(TASKS)):
        raise ConfigError("auxiliary names an unknown task", unknown[0], ", ".join(TASKS))
    return {task: _listed(given.get(task)) for task in TASKS}


def _listed(given: Any) -> Sequence[Mapping[str, Any]]:
    entries = [given] if isinstance(given, Mapping | str) else given or ()
    if not isinstance(entries, Iterable):
        raise ConfigError("auxiliary has the wrong type", given, "a model, a list of them, or a dict by task")
    return [{"model": one} if isinstance(one, str) else one for one in entries]


def asked_by(options: AgentOptions, task: str) -> AgentOptions:
    """Return the options of an agent whose turns are requests for ``task``: its models first, then the model
    in use with its fallbacks, which may read no images and are not asked about them when others can be.
    ``options`` name a model."""
    given: Mapping[str, Any] = options
    own = {name: given[name] for name in ENTRY if given[name] is not None}
    chain = list(by_task(options["auxiliary"])[task])
    if task != "vision" or not chain:
        chain += [own, *(options["fallbacks"] or ())]
    first: dict[str, Any] = dict.fromkeys(ENTRY) | dict(chain[0])
    changes = {**first, "fallbacks": chain[1:], "tools": (), "toolsets": ()}
    return cast(AgentOptions, {**options, **changes})
