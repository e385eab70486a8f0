"""One call of one tool as a turn of its own, for doors whose clients choose a tool themselves.

A port replaces the model and requests the call, so everything else works as in any turn: rules and approvals,
limits, checkpoints, the journal, and recovery after a crash. A client sends the name of a tool and its
arguments; the turn decides whether the call may run."""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fsm_agent.agent import Agent
from fsm_agent.conversation.effects import Failure, ModelRequest, ToolSpec
from fsm_agent.conversation.messages import ModelReply, ToolCall
from fsm_agent.dispatch.dispatcher import Order
from fsm_agent.errors import ConfigError
from fsm_agent.options import AgentOptions
from fsm_agent.runtime.ports import StreamSink

PREFIX = "tool-"
"""Prefix of the ids of such turns."""


def new_call_id() -> str:
    """Return an id for a turn that makes one call."""
    return f"{PREFIX}{uuid.uuid4().hex}"


def message_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the message of a turn that makes one call."""
    return json.dumps({"tool": tool, "arguments": arguments}, ensure_ascii=False)


def find_agent(make_agent: Callable[..., Any], order: Order | None) -> tuple[Agent[Any, Any], Any]:
    """Call a service's factory for an order; return the agent, and the dependencies of its tools."""
    result = make_agent(order) if inspect.signature(make_agent).parameters else make_agent()
    return result if isinstance(result, tuple) else (result, None)


def with_called_tools(
    make_agent: Callable[..., Any], tools: Collection[str]
) -> Callable[[Order | None], tuple[Agent[Any, Any], Any]]:
    """Return a factory of agents whose turns with ids of ``new_call_id`` call one of these tools."""
    port = CallPort(frozenset(tools))

    def made(order: Order | None) -> tuple[Agent[Any, Any], Any]:
        agent, deps = find_agent(make_agent, order)
        if order is None or not order.turn.startswith(PREFIX):
            return agent, deps
        own: AgentOptions = {
            **agent.options,
            "model": port,
            "fallbacks": (),
            "base_url": None,
            "api_key": None,
        }
        return Agent.of(own), deps

    return made


def choose_tools(agent: Agent[Any, Any], names: Collection[str]) -> dict[str, ToolSpec]:
    """Return the descriptions of these tools of an agent, by name. Raises ``ConfigError`` for an unknown
    name."""
    known = {spec.name: spec for spec in agent.tools}
    if missing := sorted(set(names) - set(known)):
        raise ConfigError("no such tool", missing[0], ", ".join(sorted(known)))
    return {name: known[name] for name in names}


class CallPort:
    """Requests the call named by the turn's message, and ends the turn once the result is there."""

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Return the next reply."""
        rows = json.loads(request.body)["messages"]
        if request.purpose != "turn" or rows[-1]["role"] != "user":
            return ModelReply("Done.")
        content = rows[-1]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        given, _ = json.JSONDecoder().raw_decode(text)  # features may append text
        name, arguments = given["tool"], given["arguments"]
        if name not in self._tools:
            return ModelReply(f"The tool {name} is not served.")
        sink.tool(name)
        return ModelReply(tool_calls=(ToolCall("call-1", name, json.dumps(arguments)),), finish="tool_calls")

    def use_key(self, key: str) -> None:
        """Do nothing: there is no key."""

    async def rebuild(self) -> None:
        """Do nothing: there is no connection."""

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""
