"""``module:make_agent``: what makes the agent of a turn on a worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fsm_agent.agent import Agent
from fsm_agent.composition.options import AgentOptions
from fsm_agent.dispatch.port import Order
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store

SHAPE = "a function without parameters, or with one (the order), that returns an Agent or (Agent, deps)"


@dataclass(frozen=True, slots=True)
class App:
    """The user's factory. ``made`` is called once a turn: an agent has one session and says what its tools
    get as ``deps``."""

    factory: Callable[..., Any]
    takes_order: bool
    store: Store

    @classmethod
    def of(cls, factory: object, name: str, store: Store) -> App:
        """The app of what ``name`` is. Raises ``ConfigError`` for what is no factory."""
        if isinstance(factory, Agent):
            raise ConfigError("--app is an agent, and each turn needs one of its own", name, SHAPE)
        if not callable(factory) or isinstance(factory, type):
            raise ConfigError("--app is no factory of agents", name, SHAPE)
        try:
            required = [
                one
                for one in inspect.signature(factory).parameters.values()
                if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
            ]
        except (TypeError, ValueError):
            required = []
        if len(required) > 1:
            raise ConfigError("--app wants more than the order", name, SHAPE)
        app = cls(factory, bool(required), store)
        if not required:  # what is wrong with it is said before anything is served
            app._made(None)
        return app

    def made(self, order: Order) -> tuple[Agent[Any, Any], Any]:
        """The agent that runs a turn of this order, in the store of the worker, and the ``deps`` of its
        tools. Raises ``ConfigError``."""
        agent, deps = self._made(order)
        there: AgentOptions = {
            **agent.options,
            "session_id": order.session,
            "store": self.store,
            "home": self.store.home,
            "source": _source(agent.options["source"]),
        }
        return Agent.of(there), deps

    def _made(self, order: Order | None) -> tuple[Agent[Any, Any], Any]:
        try:
            made = self.factory(order) if self.takes_order else self.factory()
        except ConfigError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise ConfigError(f"--app failed ({type(error).__name__}: {error})", None, SHAPE) from error
        agent, deps = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(agent, Agent):
            raise ConfigError("--app gave no agent", type(agent).__name__, SHAPE)
        return agent, deps


def _source(given: str) -> str:
    return "worker" if given == "python" else given
