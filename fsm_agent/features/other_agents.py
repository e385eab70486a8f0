"""Other agents: for child turns, as tools, and to take over a conversation (``Agent(handoffs=[…])``)."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import Field

from fsm_agent.conversation.effects import Saved
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.result import TRANSFER, HandoffStep, way_of
from fsm_agent.errors import ConfigError
from fsm_agent.features import RESULTS, Ground, save
from fsm_agent.options import AgentOptions, Inherited, by_task, task_options
from fsm_agent.runtime.callbacks import Callbacks, child_callbacks
from fsm_agent.runtime.events import StatusText
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.settings import Settings
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import Interrupt
from fsm_agent.tools import Tool, ToolFailure, as_tool, tool
from fsm_agent.tools.decorator import ToolSource
from fsm_agent.toolsets.agent import ChildTask
from fsm_agent.toolsets.agent.background import REVIEW, TOOLSETS
from fsm_agent.toolsets.agent.child import LONGEST, MAX_TASK, ChildAgent, ChildFactory, Delegation, delegating
from fsm_agent.toolsets.tool_context import here

# ----------------------------------------------------------------------------------------------------
# Agents for child turns: like their parent, or like another agent, without what a child may not do.


WITHHELD_TOOLSETS = frozenset({"memory", "learn", "clarify", "code"})
WITHHELD = frozenset(
    {"memory", "skill_manage", "clarify", "execute_code", "send_message", "cronjob", "schedule"}
)
"""Tools that a child never has, even if its user gave them: it does not write notes or skills, ask or message
people, schedule work, or run programs that call tools (AGT-05). Reviews write the notes and skills."""


SIDE_ITERATIONS = 3
"""Iterations of a child that only answers: one, and two for a reply that is cut."""


class Borrowed:
    """The tools of a source that the parent keeps running."""

    def __init__(self, source: ToolSource) -> None:
        self._source = source

    @property
    def labels(self) -> tuple[str, ...]:
        return self._source.labels

    def tools(self) -> Sequence[Tool]:
        return self._source.tools()

    async def ready(self, taken: Collection[str], interrupted: Interrupt) -> tuple[str, ...]:
        return ()

    async def find(self, name: str) -> Tool | None:
        return await self._source.find(name)

    async def aclose(self) -> None:
        """Do nothing: the parent closes the source."""


class ChildAgentFactory:
    """Makes the agents of children from the parent's options and ``Ground``."""

    def __init__(self, parent: Ground) -> None:
        self._parent, options, self._settings = parent, parent.options, parent.settings
        self._options: AgentOptions = {**options, "mcp": None, "handoffs": ()}  # a child answers its parent
        self._more = None if parent.more is None else Borrowed(parent.more)
        self._depth = 0 if options["inherits"] is None else options["inherits"].depth
        self._most, self._other = parent.settings.delegation.max_iterations, False

    @property
    def allowed(self) -> bool:
        """Return whether an agent of this depth may have children."""
        return self._depth < self._parent.settings.delegation.max_depth

    def has_models(self, task: str) -> bool:
        """Return whether there are models for this side task, besides the one in use."""
        return bool(by_task(self._options["auxiliary"])[task])

    def of(self, other: AgentOptions, settings: Settings, most: int) -> ChildFactory:
        """Return a factory for child turns of another agent, with its own ``settings`` and at most ``most``
        iterations. The limits on the tree remain those of its first agent."""
        family = copy.copy(self)
        hooks = (*self._options["hooks"], *other["hooks"])
        telemetry = self._parent.telemetry if other["telemetry"] is None else other["telemetry"]
        family._options = {**other, "handoffs": (), "hooks": hooks, "telemetry": telemetry}
        family._more, family._most = None, most
        family._other = True
        mine = self._settings
        above: dict[str, Any] = {"delegation": mine.delegation, "limits": settings.limits.within(mine.limits)}
        above["prices"] = {**mine.prices, **settings.prices}
        family._settings = settings.model_copy(update=above)
        return family

    def child(self, order: ChildTask) -> ChildAgent:
        options, more = self._options, self._more
        bounds: dict[str, Any] = {"max_iterations": self._most}
        if order.side_task:
            options, more = task_options(options, order.side_task), None
            request = self._settings.request.without_hosted().for_another()
            bounds = {**_few(SIDE_ITERATIONS), "request": request}
        elif order.task_id == REVIEW:
            groups = [name for name in options["toolsets"] or () if name in TOOLSETS]
            options, more = {**options, "tools": (), "toolsets": groups}, None
            bounds = _few(self._settings.memory.review_iterations)
        else:
            own = [one for one in map(as_tool, options["tools"] or ()) if one.spec.name not in WITHHELD]
            groups = [name for name in options["toolsets"] or () if name not in WITHHELD_TOOLSETS]
            options = {**options, "tools": own, "toolsets": groups}
        return self._make(order, options, self._settings.model_copy(update=bounds), more)

    def _make(
        self, order: ChildTask, options: AgentOptions, settings: Settings, more: ToolSource | None
    ) -> ChildAgent:
        parent, limits = self._parent, self._parent.settings.delegation
        approvals = parent.approvals.for_child(
            Callbacks(order.callbacks),
            one_line(order.goal, 200),
            ask=limits.approvals == "ask" and not order.unattended,
            rules=settings.approval if self._other else None,
        )
        if Turns(parent.store.database).info(order.parent_turn).imported:
            approvals = approvals.for_imported()
        callbacks = child_callbacks(options["callbacks"], order.callbacks) if self._other else order.callbacks
        return parent.make(
            {
                **options,
                "settings": settings,
                "home": parent.home,
                "session_id": order.session_id,
                "callbacks": callbacks,
                "clock": parent.clock,
                "budget": order.budget,
                "memory": None,
                "output_type": options["output_type"] if self._other else None,
                "input_guardrails": options["input_guardrails"] if self._other else (),
                "output_guardrails": options["output_guardrails"] if self._other else (),
                "workdir": options["workdir"] if self._other and options["workdir"] else parent.workdir,
                "store": parent.store,
                "inbox": None,
                "inherits": Inherited(order, self._depth + 1, approvals, more),
                "source": "child",
            }
        )

    def keep(self, name: str, text: str) -> Saved:
        return save(self._parent.home / RESULTS, name, text)


def _few(most: int) -> dict[str, int]:
    """Return the limits of a small child turn."""
    return {"max_iterations": most, "max_attempts_per_turn": 3 * most}


# ----------------------------------------------------------------------------------------------------
# Another agent as a tool: each call is a child turn of that agent, under its own model, prompt and tools.


UNHELD = "The agent {name} answers only an agent that has it among its tools."
TOO_DEEP = (
    "The agent {name} was not asked: agents may be nested at most {most} deep (delegation.max_depth)."
    " Do without it."
)


class OtherAgent:
    """Asks one agent. ``delegation`` runs its turns, ``None`` until an agent has it as a tool; ``refusal``:
    why the calling agent may not ask, or an empty string."""

    def __init__(self, name: str, delegation: Delegation | None = None, refusal: str = "") -> None:
        self._name, self._delegation, self._refusal = name, delegation, refusal

    async def ask(
        self,
        task: Annotated[str, Field(min_length=1, max_length=MAX_TASK)],
        context: Annotated[str, Field(max_length=MAX_TASK)] = "",
        idempotency_key: str = "",
    ) -> str:
        """Give a task to another assistant and get its answer.

        Args:
            task: What is to be done, and what the answer must hold. It sees nothing of this conversation.
            context: All that it must know for it.
        """
        if self._delegation is None or self._refusal:
            raise ToolFailure(self._refusal or UNHELD.format(name=self._name))
        order = self._delegation.order(idempotency_key, task, context)
        [end] = await self._delegation.run_children([order], idempotency_key)
        answer = self._delegation.fit(order, end.text)
        if end.status == "completed":
            return answer
        rest = f"\n\nWhat it said so far:\n{answer}" if answer.strip() else ""
        raise ToolFailure(f"{self._name} did not finish ({end.status}): {end.error or 'no answer'}{rest}")


def other_agent(name: str, description: str, agent: OtherAgent) -> Tool:
    """Make a tool that is idempotent because the call's key names the child. Raises ``ConfigError`` for an
    invalid tool name."""
    ask = tool(name=name, concurrency="parallel", effect="idempotent", timeout=LONGEST)(agent.ask)
    return delegating(ask, description)


# ----------------------------------------------------------------------------------------------------
# An agent as a tool of other agents: what ``Agent.as_tool`` returns.


TASK_DESCRIBED = (
    "Give a task to the agent {name} and get its answer. It sees nothing of this conversation, so tell it"
    " everything that it must know."
)


@dataclass(frozen=True, kw_only=True)
class AgentTool(Tool):
    """A tool whose calls are child turns of an agent with these ``options`` and ``settings``. ``most``:
    maximum iterations of one turn."""

    options: AgentOptions
    settings: Settings
    most: int

    def held_by(self, ground: Ground) -> Tool:
        """Return the tool bound to the agent that has it."""
        name, limits = self.spec.name, ground.settings.delegation
        children = Delegation(
            ground.child_factory.of(self.options, self.settings, self.most),
            ground.store,
            ground.callbacks,
            ground.clock,
            ground.settings,
            self.most,
        )
        refusal = "" if ground.child_factory.allowed else TOO_DEEP.format(name=name, most=limits.max_depth)
        return replace(self, handler=OtherAgent(name, children, refusal).ask)


def agent_tool(options: AgentOptions, settings: Settings, description: str, most: int | None) -> AgentTool:
    """Return an agent with these options as a tool, under its name. Raises ``ConfigError``."""
    most = settings.max_iterations if most is None else most
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError("max_iterations of as_tool cannot be used", most, "a whole number from 1")
    name = options["name"]
    ask = other_agent(name, description or TASK_DESCRIBED.format(name=name), OtherAgent(name))
    values = {one.name: getattr(ask, one.name) for one in fields(ask)}
    return AgentTool(**values, options=options, settings=settings, most=most)


# ----------------------------------------------------------------------------------------------------
# Handoffs: a tool for each agent that can take over the conversation. The call only requests it; the turn
# ends when all calls of its round have their results, and the next turn is the other agent's.


LONGEST_NOTE = 20_000
"""Maximum characters."""
TOO_OFTEN = (
    "Not handed over: the conversation went from agent to agent {count} times since the user spoke, and at"
    " most {most} are allowed (delegation.max_handoffs). Answer the user yourself."
)


class Transfer:
    """Hands a conversation to one agent; at most ``most`` times in a row, over all agents."""

    def __init__(self, to: str, most: int) -> None:
        self._to, self._most = to, most

    async def transfer(self, note: Annotated[str, Field(max_length=LONGEST_NOTE)] = "") -> str:
        """Hand the conversation over.

        Args:
            note: What the next agent should know besides the conversation, which it sees.
        """
        if (count := here().handoffs) >= self._most:
            raise ToolFailure(TOO_OFTEN.format(count=count, most=self._most))
        return f"{self._to} continues the conversation."


def transfer_tool(to: str, description: str, most: int) -> Tool:
    """Make the tool that hands the conversation to the agent of this name. It changes nothing by itself, and
    programs may not call it."""
    base = tool(name=f"{TRANSFER}{to}", concurrency="interactive", effect="pure")(Transfer(to, most).transfer)
    return replace(base, spec=replace(base.spec, description=description))


A = TypeVar("A", bound="OptionedAgent")
Rows = Sequence[Mapping[str, Any]]
DESCRIBED = "Hand the conversation over to {name}, which then answers the user in your place."
FORMS = "an Agent, or Handoff(agent)"


class OptionedAgent(Protocol):
    """The part of ``fsm_agent.Agent`` that a handoff needs."""

    settings: Settings
    session_id: str

    @property
    def options(self) -> AgentOptions:
        """Its options."""
        ...


class Handoff:
    """An agent that a conversation can be handed to. ``name``: its name here, by default its own; its tool is
    ``transfer_to_NAME``. ``description``: when to hand over, for the model. ``input_filter``: maps the
    conversation (rows as in ``TurnResult.messages``) to the rows that the agent gets; omitted rows are put
    aside, not deleted. ``agent`` may be a function that returns the agent, so that two agents can hand over
    to each other; it needs a ``name``. Raises ``ConfigError``."""

    def __init__(
        self,
        agent: OptionedAgent | Callable[[], OptionedAgent],
        *,
        name: str | None = None,
        description: str = "",
        input_filter: Callable[[list[dict[str, Any]]], Rows] | None = None,
    ) -> None:
        if not hasattr(agent, "options") and not callable(agent):
            raise ConfigError("handoffs has a wrong entry", agent, FORMS)
        if name is None and not hasattr(agent, "options"):
            raise ConfigError("a handoff to a function has no name", agent, "Handoff(function, name=…)")
        if input_filter is not None and not callable(input_filter):
            raise ConfigError(
                "input_filter of a handoff cannot be called", input_filter, "a function of rows"
            )
        self._agent = agent
        self.name: str = self.agent.options["name"] if name is None else name
        self.description = description or DESCRIBED.format(name=self.name)
        self.input_filter = input_filter

    @property
    def agent(self) -> OptionedAgent:
        """The agent itself, resolved if a function was given."""
        found: Any = self._agent if hasattr(self._agent, "options") else self._agent()
        if not hasattr(found, "options"):
            raise ConfigError(f"the handoff {self.name!r} gives no agent", found, "an Agent")
        agent: OptionedAgent = found
        return agent

    def filter_rows(self, rows: Rows) -> Rows | None:
        """Return the rows that the agent gets instead of ``rows``; ``None`` for all of them. Raises
        ``ConfigError``."""
        if self.input_filter is None:
            return None
        try:
            kept: object = self.input_filter([dict(row) for row in rows])
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"input_filter of the handoff to {self.name} failed", why, "rows") from error
        if isinstance(kept, str) or not isinstance(kept, Sequence):
            raise ConfigError(f"input_filter of the handoff to {self.name} gave no rows", kept, "a list")
        return kept


def handoffs_of(given: Sequence[Any]) -> tuple[Handoff, ...]:
    """Return the handoffs of an agent. Raises ``ConfigError`` for other objects and duplicate names."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError("handoffs has the wrong type", given, f"a list of: {FORMS}")
    found = tuple(one if isinstance(one, Handoff) else Handoff(one) for one in given)
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError("two handoffs have the same name", twice[0], "Handoff(agent, name=…)")
    return found


def transfer_tools(given: Sequence[Any], most: int) -> list[Tool]:
    """Return the tools that hand a conversation over."""
    return [transfer_tool(one.name, one.description, most) for one in handoffs_of(given)]


def found_handoff(options: AgentOptions, last: HandoffStep) -> Handoff:
    """Return the handoff of this step, among those of an agent and of the agents that it can reach; one to
    the same name if that is gone. Raises ``ConfigError`` if no agent of that name can be reached."""
    reached = list(_reachable(options))
    for source, one in reached:
        if (source, one.name) == (last.agent, last.to):
            return one
    for _, one in reached:
        if one.name == last.to:
            return one
    name = options["name"]
    known = ", ".join(dict.fromkeys((name, *(one.name for _, one in reached))))
    raise ConfigError(f"{name} knows no agent of this name", last.to, known)


def _reachable(options: AgentOptions) -> Iterator[tuple[str, Handoff]]:
    """Yield (source agent, handoff), expanding each agent once, the nearest first."""
    seen, waiting = {options["name"]}, deque([(options["name"], options)])
    while waiting:
        source, one = waiting.popleft()
        for handoff in handoffs_of(one["handoffs"]):
            yield source, handoff
            if handoff.name not in seen:
                seen.add(handoff.name)
                waiting.append((handoff.name, handoff.agent.options))


class OtherAgents(Generic[A]):
    """The agents that can take over a conversation of ``agent``. Each is made once, with ``make``, in the
    store and for the people of that agent."""

    def __init__(self, agent: A, ground: Ground, make: Callable[[AgentOptions], A]) -> None:
        self._agent, self._ground, self._make = agent, ground, make
        self._made: dict[str, A] = {}

    def __iter__(self) -> Iterator[A]:
        return iter(self._made.values())

    def of(self, handoff: Handoff, session_id: str) -> A:
        """Return the agent of a handoff, with the session of the conversation."""
        if handoff.agent is self._agent:
            other = self._agent
        else:
            if handoff.name not in self._made:
                self._made[handoff.name] = self._make(self._options(handoff))
            other = self._made[handoff.name]
        other.session_id = session_id
        return other

    def taking_over(
        self, session_id: str, step: HandoffStep, rows: Sequence[Message]
    ) -> tuple[A, Rows | None]:
        """Return the agent of a requested handoff and its filtered rows (``None`` for all); publish a status
        line. Raises ``ConfigError`` if no agent of that name can be reached."""
        handoff = found_handoff(self._agent.options, step)
        history = handoff.filter_rows([row.to_dict() for row in rows])
        other = self.of(handoff, session_id)
        self._ground.callbacks.publish(StatusText(f"{step.agent} hands the conversation over to {step.to}"))
        return other, history

    def find(self, name: str, session_id: str) -> A:
        """Return the agent of this name; ``agent`` itself if it knows no other."""
        options = self._agent.options
        if name == options["name"] or not options["handoffs"]:
            return self._agent
        try:
            handoff = found_handoff(options, HandoffStep("", name, "", ""))
        except ConfigError as error:
            self._ground.callbacks.publish(StatusText(f"{error}; {options['name']} continues"))
            return self._agent
        return self.of(handoff, session_id)

    def _options(self, handoff: Handoff) -> AgentOptions:
        """Return the agent's own options, with the store, the people and the limits of ``agent``."""
        own, settings, ground = handoff.agent.options, handoff.agent.settings, self._ground
        mine, most = self._agent.options, ground.settings.delegation.max_handoffs
        above = {
            "delegation": settings.delegation.model_copy(update={"max_handoffs": most}),
            "limits": settings.limits.within(ground.settings.limits),
        }
        return {
            **own,
            "name": handoff.name,
            "settings": settings.model_copy(update=above),
            "home": ground.home,
            "store": ground.store,
            "clock": ground.clock,
            "callbacks": mine["callbacks"] if own["callbacks"] is None else own["callbacks"],
            "workdir": ground.workdir if own["workdir"] is None else own["workdir"],
            "source": mine["source"],
            "inbox": ground.signals,
            "telemetry": ground.telemetry if own["telemetry"] is None else own["telemetry"],
        }


# ----------------------------------------------------------------------------------------------------
# The current agent of a conversation: the one that ran its last turn, or that received it from it.


@dataclass(frozen=True, slots=True)
class Speaker:
    """The agent that has had the conversation since ``turn``, the last turn that was not undone.
    ``handoffs``: the way to it since the user spoke, if its own turn has not begun; else empty. ``task_id``:
    of that turn."""

    agent: str
    turn: TurnInfo
    handoffs: tuple[HandoffStep, ...] = ()
    task_id: str = ""


def speaker_of(store: Store, session_id: str) -> Speaker | None:
    """Return the current agent of a conversation, ``None`` before its first turn."""
    turns = Turns(store.database)
    newest = turns.newest(session_id)
    return None if newest is None else speaker_after(turns, newest)


def speaker_after(turns: Turns, turn_id: str) -> Speaker:
    """Return the current agent of a conversation after a turn, or during it."""
    info, result = turns.info(turn_id), turns.result(turn_id) or {}
    way = way_of(result.get("handoffs")) if info.exit == "handed_over" else ()
    if not way:
        return Speaker(turns.agent(turn_id), info)
    return Speaker(way[-1].to, info, way, str(result.get("task_id", "")))
