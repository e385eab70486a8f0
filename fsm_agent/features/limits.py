"""Keeps a turn within its limits in money, tokens and time.

Theory of operation
-------------------
The cost of a request is known only when its reply has arrived. A limit that is compared with past spending is
therefore exceeded by one request, and by one more for each turn that runs at the same time. So a request is
checked before it is sent, against the most that it can take: the estimate of its prompt, and the longest
reply that it may have. If less than that is left, the reply is capped at what is left. If not even a short
reply fits (``LEAST_REPLY``), the request is not sent, and the turn ends with the limit's own exit.

Three amounts make up a limit (``SpendLimit``):

- *spent* is read from the store before each check, never remembered. So requests of killed processes, of
  children and of other sessions count, each under its scope: turn, tree (a turn and all below it), session
  (a conversation with its branches), day. Writes are read in their order, so what a check sees is never newer
  than what it misses.
- *held* is what pending requests may still take. A reservation is made in the same locked step as the
  decision, and it is released when the request has reached the writer, at the next request of the turn
  (``LATER`` lists what may come between). Between the two it briefly counts twice, never not at all.
- *limit* comes from the settings of the agent that runs the turn now. Nothing in the store grants the right
  to spend, so a turn that was exported with a high limit gains nothing.

A turn with too little left *because others hold it* waits for them: most requests take far less than they
may. With ``GENEROUS`` tokens of room it does not wait. A turn with too little left *by itself* ends.

Checks happen in two places:

- ``BuildMessages`` asks (``CheckLimits``) for each request of the turn, and ``Compress`` for each summary, so
  the answer is in the journal and decides by a row of the table.
- The layer checks what no state of this process has checked: a summary, whose request is made by a context
  engine, and the first request of a turn that was forked or resumed in ``CallLLM``, whose check belongs to
  another turn or another time.

Waiting for people does not count as time: ``_time_request`` leaves out questions, and ``WorkTime`` counts
overlapping work once. Children work within the time of their root. The time used by an earlier process is
read once from the journal.

Three things would break this: a model request that bypasses the layer; an unknown price (refused when a turn
begins, since such a model would be free); and holding without the lock, where two turns would both see the
same rest. (Why: decision 100.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fsm_agent.conversation.effects import (
    AskApproval,
    CallModel,
    Cancelled,
    CheckLimits,
    CloseTurn,
    Failure,
    LimitReached,
    LimitsChecked,
    RunTool,
    Wait,
)
from fsm_agent.conversation.messages import ModelReply, Usage
from fsm_agent.conversation.result import estimate_usage
from fsm_agent.conversation.token_meter import LEAST_REPLY
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features import Ground
from fsm_agent.fsm.runner import Layer, Perform
from fsm_agent.providers.catalog import PER, Price, dearest, price_of
from fsm_agent.providers.failover import Backend
from fsm_agent.runtime.clock import Stopwatch, WorkTime
from fsm_agent.sessions.store.reports import NOTHING_SPENT, Expense, Spending
from fsm_agent.settings import LimitScope, Settings

Unit = Literal["usd", "tokens", "seconds"]
LATER = (RunTool, Wait, CloseTurn)
"""Requests that never come between the check of a request and the request."""
GENEROUS = 4_096
"""Tokens of a reply that suffice to send a request while others hold the rest of a limit; with fewer it
waits."""
KINDS: Mapping[Unit, Literal["cost", "tokens", "time"]] = {
    "usd": "cost",
    "tokens": "tokens",
    "seconds": "time",
}
ADVICE: Mapping[LimitScope, str] = {
    "turn": "raise it, or continue with another message",
    "tree": "raise it, or continue with another message",
    "session": "raise it, or begin another session",
    "day": "raise it, or wait for tomorrow",
}


@dataclass(frozen=True, slots=True)
class SpendLimit:
    """One limit in money or tokens: the amount ``spent``, and the amount that others have ``held``."""

    scope: LimitScope
    unit: Literal["usd", "tokens"]
    limit: float
    spent: float
    held: float = 0.0

    def reply(self, prompt: int, price: Price, *, alone: bool) -> float:
        """Return the maximum tokens of a reply to such a prompt; below 0 if the prompt is too large.
        ``alone``: as if no other turn held anything."""
        left = self.limit - self.spent - (0.0 if alone else self.held)
        if self.unit == "tokens":
            return left - prompt
        left -= price.most(prompt, 0)
        each = price.output / PER
        return math.copysign(math.inf, left) if not each else math.floor(left / each)

    def reached(self, prompt: int, output: int, price: Price) -> LimitReached:
        """Build the ``LimitReached`` reported when the next request could exceed this limit."""
        most, least = (
            price.most(prompt, reply) if self.unit == "usd" else prompt + reply
            for reply in (output, min(output, LEAST_REPLY))
        )
        return LimitReached(self.scope, self.unit, self.limit, self.spent, most, least)


class Limits(Extension):
    """The feature ``limits``, of an agent or of one turn that has some among its ``settings``."""

    name = "limits"

    def __init__(self, ground: Ground, settings: Settings) -> None:
        self._ground, self._settings = ground, settings

    def in_turn(self, here: Here) -> Part:
        return LimitKeeper(self._ground, self._settings, here.fence.turn_id, here.session.id)


class UnknownPrice(ConfigError):
    """A limit in money cannot be kept, because a model that may be called has no known price."""


class LimitKeeper(Part):
    """The limits of one turn, or with an empty ``turn_id`` of a compaction that a person requests. Raises
    ``UnknownPrice`` if there is a limit in money and a model that may be called has no known price."""

    def __init__(self, agent: Ground, settings: Settings, turn_id: str, session_id: str) -> None:
        self._agent, self._settings, self._turn = agent, settings, turn_id
        layers = (
            Layer("limits in time", self._time_request),
            Layer("limits", self._call_within, (CallModel,)),
        )
        super().__init__({CheckLimits: self.check}, layers, checks={"limits": True})
        limits = settings.limits.each.items()
        self._limits = {scope: one for scope, one in limits if turn_id or scope in ("session", "day")}
        self._counts = any(one.usd or one.tokens for one in self._limits.values())
        self._refuse_unpriced()
        self._spending = Spending(agent.store, turn_id, session_id, tuple(self._limits))
        self._held = agent.store.reservations
        self._own, self._others = WorkTime(agent.clock), dict[LimitScope, float]()
        self._root: WorkTime | None = None
        self._called = self._checked = False
        if turn_id:
            self._held.clocks[turn_id] = self._own

    def _refuse_unpriced(self) -> None:
        scope = next((scope for scope, limit in self._limits.items() if limit.usd is not None), None)
        for backend in (*self._agent.backends.chain, *self._agent.auxiliary) if scope else ():
            if self._price(backend) is None:
                name = f"{backend.choice.profile.name}:{backend.choice.model}"
                raise UnknownPrice(
                    f"limits.{scope}.usd needs the price of every model that may be asked; one is not known",
                    name,
                    "a model with a list price, or the setting prices, in dollars for a million tokens:"
                    f' {{"{name}": {{"input": 1, "output": 4}}}}',
                )

    def _price(self, backend: Backend) -> Price | None:
        choice = backend.choice
        return price_of(choice.model, choice.profile.name, self._settings.prices)

    # Layers around all requests

    async def _time_request(self, request: Any, turn: Any, call_next: Perform) -> Any:
        """Count the time of a request, unless it waits for a person."""
        if self._called or isinstance(request, LATER):  # the writer has the last request's usage by now
            self._called = False
            self._held.release(self)
        if isinstance(request, AskApproval) or (isinstance(request, RunTool) and request.name == "clarify"):
            return await call_next(request)
        with self._own.going_on():
            return await call_next(request)

    async def _call_within(
        self, request: CallModel, turn: Any, call_next: Perform
    ) -> ModelReply | Failure | Cancelled:
        """Perform a request. Check it first if no state has: a summary, and the first request of a turn that
        was forked or resumed after its check."""
        backend = self._backend_of(request)
        if request.request.purpose == "summary" or not self._checked:
            most = backend.choice.runtime().most_output or self._settings.length.cap_max
            checked = await self._check_limits(request.request.estimate, most, self._price(backend))
            if checked.over:
                return Failure("capped", checked.why, sent=False)
        try:
            reply: ModelReply | Failure | Cancelled = await call_next(request)
        finally:
            self._called = True
        if not self._turn:
            await self._note(request, reply, backend)
        return reply

    def _backend_of(self, request: CallModel) -> Backend:
        agent = self._agent
        return agent.backends.current if request.auxiliary is None else agent.auxiliary[request.auxiliary]

    async def _note(
        self, request: CallModel, reply: ModelReply | Failure | Cancelled, backend: Backend
    ) -> None:
        """Record the usage of a request outside of a turn, which has no journal."""
        usage: Usage = reply.usage or estimate_usage(request.request, reply)
        price = self._price(backend)
        usd = 0.0 if price is None else price.most(usage.prompt, usage.output)
        values = (self._turn, self._agent.store.now(), usage.total, usd)
        insert = "INSERT INTO unreported (turn, at, tokens, cost) VALUES (?, ?, ?, ?)"
        await self._agent.store.write(lambda c: c.execute(insert, values) and None)

    # Limits

    def seconds_left(self) -> float:
        """Return the seconds until the first time limit; infinite without one."""
        return min((late.limit - late.spent for late in self._times()), default=math.inf)

    async def check(self, request: CheckLimits) -> LimitsChecked:
        """Return whether the request may be sent, and how long its reply may be."""
        agent = self._agent
        asked = (agent.backends.current, *(agent.auxiliary if request.summary else ()))
        self._checked = True
        return await self._check_limits(
            request.prompt_tokens, request.output_tokens, dearest(map(self._price, asked))
        )

    async def _check_limits(self, prompt: int, output: int, price: Price | None) -> LimitsChecked:
        self._held.release(self)
        if price is None:
            if any(limit.usd is not None for limit in self._limits.values()):
                return LimitsChecked("cost", "the price of the model is not known")
            price = Price(0.0, 0.0)
        waited, poll = Stopwatch(self._agent.clock), self._settings.poll.control
        interrupted = self._agent.signals.event()
        while not interrupted.is_set():
            released = self._held.released
            try:
                spent = await self._spending.now() if self._counts else {}
                self._learn_time()
            except StoreError as error:
                return LimitsChecked("cost", f"what was spent cannot be read: {error}")
            if late := next((one for one in self._times() if one.spent >= one.limit), None):
                return _over(late)
            if not self._counts:
                return LimitsChecked()
            with self._held.lock:
                checked = self._decide_limits(spent, prompt, output, price)
                if checked is not None and (checked.over or self._held.released == released):
                    return checked
            while self._held.released == released and not interrupted.is_set():
                if waited.elapsed() > self._settings.timeout.total:
                    return LimitsChecked("cost", "other turns hold what is left of the limits")
                await asyncio.sleep(poll)
        return LimitsChecked()  # the request is not sent: its sender checks for interrupts first

    def _decide_limits(
        self, spent: Mapping[LimitScope, Expense], prompt: int, output: int, price: Price
    ) -> LimitsChecked | None:
        """Decide on the request and reserve its amount; ``None`` if it has to wait for others."""
        limits = self._spend_limits(spent)
        tightest = min(limits, key=lambda one: one.reply(prompt, price, alone=True))
        alone = tightest.reply(prompt, price, alone=True)
        if alone < min(output, LEAST_REPLY):
            return _over(tightest.reached(prompt, output, price))
        left = min(one.reply(prompt, price, alone=False) for one in limits)
        if left < min(output, GENEROUS, alone):
            return None
        granted = int(min(output, left))
        self._held.hold(self, self._keys(), price.most(prompt, granted), prompt + granted)
        return LimitsChecked(output_tokens=granted)

    def _spend_limits(self, spent: Mapping[LimitScope, Expense]) -> list[SpendLimit]:
        limits = []
        for scope, limit in self._limits.items():
            usd, tokens = self._held.of_others(self, self._key(scope))
            there = spent.get(scope, NOTHING_SPENT)
            if limit.usd is not None:
                limits.append(SpendLimit(scope, "usd", limit.usd, there.usd, usd))
            if limit.tokens is not None:
                limits.append(SpendLimit(scope, "tokens", limit.tokens, there.tokens, tokens))
        return limits

    def _key(self, scope: LimitScope) -> str:
        family = self._spending.family
        names = {"turn": self._turn, "tree": family.root, "session": family.conversation, "day": ""}
        return f"{scope} {names[scope]}"

    def _keys(self) -> list[str]:
        """Return the keys of all scopes: other turns may have limits that this turn does not have."""
        scopes: tuple[LimitScope, ...] = ("turn", "tree", "session", "day")
        return [self._key(scope) for scope in scopes if self._turn or scope in ("session", "day")]

    # Time

    def _learn_time(self) -> None:
        """Read once the time used before this process took over the turn."""
        scopes = [scope for scope, limit in self._limits.items() if limit.seconds is not None]
        if not scopes or self._others:
            return
        self._others = found = self._spending.seconds(scopes)
        self._own.before = found["turn"]
        self._root = self._held.clocks.get(self._spending.family.root)

    def _times(self) -> list[LimitReached]:
        return [
            LimitReached(scope, "seconds", limit.seconds, self._worked_seconds(scope))
            for scope, limit in self._limits.items()
            if limit.seconds is not None
        ]

    def _worked_seconds(self, scope: LimitScope) -> float:
        """Return the seconds of a scope: children share the time of their tree's root while it runs."""
        if scope == "turn":
            return self._own.seconds
        before, root = self._others.get("tree", 0.0), self._root
        tree = before + self._own.seconds if root is None else root.seconds
        return tree if scope == "tree" else tree + self._others.get(scope, 0.0)


def _over(limit: LimitReached) -> LimitsChecked:
    unit, name = limit.unit, f"limits.{limit.scope}.{limit.unit}"
    why = f"{name} is {_amount(limit.limit, unit)}, {_amount(limit.spent, unit)} were spent"
    if limit.request:
        least, most = _amount(limit.least, unit), _amount(limit.request, unit)
        why += f", and the next request takes {least} at least, {most} at most"
    return LimitsChecked(KINDS[unit], f"{why}; {ADVICE[limit.scope]}", limit)


def _amount(value: float, unit: Unit) -> str:
    if unit == "usd":
        return f"${value:.4f}"
    return f"{value:,.0f} tokens" if unit == "tokens" else f"{value:.4g} s"
