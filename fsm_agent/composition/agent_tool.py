"""An agent as a tool of other agents: what ``Agent.as_tool`` returns."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from fsm_agent.composition.options import AgentOptions
from fsm_agent.composition.services import Services
from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import Settings
from fsm_agent.tools import Tool
from fsm_agent.toolsets.agent.delegate import Delegation
from fsm_agent.toolsets.agent.other_agent import TOO_DEEP, OtherAgent, other_agent

DESCRIBED = (
    "Give a task to the agent {name} and get its answer. It sees nothing of this conversation, so tell it"
    " everything that it must know."
)


@dataclass(frozen=True, kw_only=True)
class AgentTool(Tool):
    """A tool whose calls are child turns of an agent with these ``options`` and ``settings``. ``most``:
    iterations of one."""

    options: AgentOptions
    settings: Settings
    most: int

    def held_by(self, services: Services) -> Tool:
        """Return the tool as it is called in the turns of an agent with these services."""
        name, limits = self.spec.name, services.settings.delegation
        family = Delegation(
            services.child_factory.of(self.options, self.settings, self.most),
            services.store,
            services.callbacks,
            services.clock,
            services.settings,
            self.most,
        )
        refusal = "" if services.child_factory.allowed else TOO_DEEP.format(name=name, most=limits.max_depth)
        return replace(self, handler=OtherAgent(name, family, refusal).ask)


def agent_tool(options: AgentOptions, settings: Settings, description: str, most: int | None) -> AgentTool:
    """Return an agent with these options as a tool, by its name. Raises ``ConfigError``."""
    most = settings.max_iterations if most is None else most
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError("max_iterations of as_tool cannot be used", most, "a whole number from 1")
    name = options["name"]
    made = other_agent(name, description or DESCRIBED.format(name=name), OtherAgent(name))
    values = {one.name: getattr(made, one.name) for one in fields(made)}
    return AgentTool(**values, options=options, settings=settings, most=most)
