"""Plays a script of the turn's table on the real engine: an ``Agent``, scripted models, tools, keys, a person
who interrupts.

Before each move the driver looks at the row that the script takes next, and arranges the world so that the
real state reports its event. What it may not do is tell the engine where to go: after each move the row that
was taken is compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsm_agent import Agent, TurnResult, tool
from fsm_agent.agent import Turn
from fsm_agent.conversation.effects import (
    LOST,
    AnswerChecked,
    CallModel,
    CheckAnswer,
    CheckLimits,
    CheckMessage,
    Checks,
    CloseTurn,
    Failure,
    LimitsChecked,
    MessageChecked,
    Opened,
    ToolOutcome,
    Wait,
)
from fsm_agent.conversation.messages import ModelReply, Usage
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.runner import Perform
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.settings import Settings
from fsm_agent.testing import (
    FakeClock,
    Look,
    Reply,
    ScriptedModel,
    bad_json,
    blank,
    call,
    json_reply,
    overflow,
    reasoning,
    repeat,
    status,
    text,
    tools,
)
from fsm_agent.testing.scripts import PossibleScript
from fsm_agent_states.replies import REPLIES
from fsm_agent_states.table import TURN
from tests.helpers.harness import Refreshable, echo, fail, put, talk, todo
from tests.helpers.shape_watch import ShapeWatch
from tests.helpers.turn_facts import GO, Config, TurnFacts

WINDOW = 32_000
"""Tokens; the threshold is 27,200 of them."""
UNDER, OVER = 24_000, 34_000
"""Tokens of the history before the turn."""
TINY = 300
ENOUGH_REST = 7_200.0
"""Seconds after which every key is ready again."""


@tool(path_arguments=["path"], effect="idempotent")
def write(path: str) -> str:
    return f"wrote {path}"


@tool
def execute_code(code: str = "") -> str:
    return "42"


TOOLS = (echo, todo, write, execute_code, put, fail)


def error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "type": "invalid_request_error"}}


def transport(exception: str, detail: str) -> Failure:
    return Failure("transport", detail, exception=exception, detail=detail, sent=False)


FAILURES: dict[str, Any] = {
    "bad_key": status(401),
    "key_limited": status(429),
    "limited": json_reply({"hello": 1}),
    "overloaded": status(503),
    "unreachable": transport("ConnectError", "connection refused"),
    "server_error": status(500),
    "overflow": overflow(WINDOW + 1_000),
    "outgrown": overflow(WINDOW + 1_000),
    "compression_off": overflow(WINDOW + 1_000),
    "summary_failed": status(500),
    "rejected": status(404, error("The model does not exist", "model_not_found")),
    "refused": status(400, error("flagged", "content_policy_violation")),
    "fatal": transport("SSLError", "certificate verify failed"),
    "capped": Failure("capped", "turn and children have sent 3 requests", sent=False),
    "cap_unknown": status(400, error("max_tokens is too large for this model")),
    "cancelled": status(500),
    "crashed": status(500),
}
"""What the provider answers so that ClassifyError reports an event."""
REPAIRABLE: tuple[Any, ...] = (
    status(400, error("Invalid signature in thinking block")),
    status(400, error("the encrypted content could not be decrypted", "invalid_encrypted_content")),
    status(400, error("The long context beta is not yet available for this subscription")),
    status(400, error("error parsing grammar: x")),
    status(400, error("streaming is not supported by this model")),
    status(400, error("this model does not support image input")),
    status(400, error("tool message content must be a string")),
    Failure("encode", "x", exception="UnicodeEncodeError", sent=False),
    Failure("encode", "x", exception="UnicodeEncodeError", sent=False),
)


def served(example: ModelReply) -> Reply | ModelReply:
    """The reply as a provider streams it; as it is, where this wire knows no such end."""
    if example.cut or example.finish == "incomplete":
        return example
    calls = tuple(call(one.name, one.arguments) for one in example.tool_calls)
    return Reply(text=example.text, calls=calls, finish=example.finish)


LIMITS: dict[str, Any] = {f"over_{unit}": unit for unit in ("cost", "tokens", "time")} | {
    "unaffordable": "cost"
}


class InjectedBug(RuntimeError):
    """Raised in the place of a bug of the engine's."""


class Budget(IterationBudget):
    """Shared with others who can take it all, and give it back."""

    def __init__(self) -> None:
        super().__init__(10**9)
        self.closed = False

    def take(self) -> bool:
        return not self.closed and super().take()


class Interferer:
    """Acts at the gate: raises a bug, interrupts in the middle of a wait, or answers for a model as the
    journal does after a crash in the middle of a request."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self.bug = self.in_wait = self.lost = self.checks = False
        self.event, self._interrupt = "", interrupt

    async def passing(self) -> None: ...

    async def performing(self, request: Any, turn: Any, call_next: Perform) -> Any:
        if self.bug:
            self.bug = False
            raise InjectedBug("as the script wants it")
        if self.lost and isinstance(request, CallModel):
            return replace(LOST, sent=False)
        if self.in_wait and isinstance(request, Wait):
            self._interrupt()
        if isinstance(request, CheckMessage | CheckAnswer | CheckLimits):
            return self._checked(request)
        reply = await call_next(request)
        if isinstance(reply, Opened) and self.checks:
            return replace(reply, checks=Checks(message=True, answer=True, limits=True))
        if isinstance(reply, ToolOutcome) and self.event == "handed_over":
            return replace(reply, hands_to="another")
        return reply

    def _checked(self, request: CheckMessage | CheckAnswer | CheckLimits) -> Any:
        blocked = "as the script wants it" if self.event == "blocked" else ""
        match request:
            case CheckMessage():
                return MessageChecked(blocked)
            case CheckAnswer():
                return AnswerChecked("not of the type" if self.event == "invalid_output" else "", blocked)
        return LimitsChecked(LIMITS.get(self.event, ""), "a limit of the script")


class Driver:
    """One script on one agent. ``urls``: of a local server, for a chain in which a model has too small a
    window."""

    def __init__(self, script: PossibleScript, config: Config, home: Path, url: str = "") -> None:
        self.script, self.config, self.url = script, config, url
        self.clock, self.budget, self.key = FakeClock(), Budget(), Refreshable()
        self.at = self.made = self.repairs = 0
        self.ports: list[ScriptedModel] = []
        limits = config.limits
        first = self._entry(0)
        self.agent = Agent(
            first.pop("model"), **first, tools=TOOLS, toolsets=[],
            auxiliary=[{"model": self._port()} for _ in range(limits["summarizers"] - 1)],
            fallbacks=[self._entry(place) for place in range(1, limits["fallbacks"] + 1)] + self._ring(),
            settings=settings_of(config), home=home, workdir=home, clock=self.clock, budget=self.budget,
        )  # fmt: skip

    def _entry(self, place: int) -> dict[str, Any]:
        rekeys, refresh = self.config.limits["rekeys"], self.config.keys == "refresh"
        keys: Any = self.key if refresh and rekeys else [f"key-{number}" for number in range(rekeys + 1)]
        if 0 <= self.config.tiny_from <= place:
            tiny = {"model": f"llamacpp:tiny-{place}", "base_url": self.url}
            return {**tiny, "context_window": TINY, "api_key": keys}
        port = self._port()
        self.ports.append(port)
        wider = {"equal": 0, "wider": place, "ring": place == 0}[self.config.chain]
        window = WINDOW + wider if self.config.window else None
        return {"model": port, "context_window": window, "api_key": keys}

    def _port(self) -> ScriptedModel:
        return ScriptedModel(repeat(self._answer), clock=self.clock)

    def _ring(self) -> list[dict[str, Any]]:
        if self.config.chain != "ring":
            return []
        return [{"model": self.ports[0], "context_window": WINDOW + 1, "api_key": ["again"]}]

    # Playing

    async def play(self) -> tuple[Turn, TurnResult]:
        """Every move of the script; raises ``AssertionError`` for the first that the engine makes
        otherwise."""
        script = self.script
        turn = self.agent.start(self._message(), conversation_history=self._history())
        interferer = Interferer(lambda: self.agent.interrupt("stop it"))
        turn.gate.attach(interferer)
        if script.facts[0].breaker_open:
            await self.agent.start("before").pipeline(CloseTurn(silences=1))
        facts = TurnFacts(self.config)
        look, shapes = Look(TURN, turn.gate.turn), ShapeWatch(turn.gate.turn)
        for self.at, row in enumerate(script.rows):
            known = turn.snapshot()["counters"]
            self._arrange(row.event, interferer)
            step = await turn.step()
            assert step is not None
            assert step.row == row.id, self._told(step, turn, known)
            look.moved(step.event, row)
            shapes.moved(row.id)
            if row.dest != TURN.final:
                wrong = facts.differences(script.facts[self.at + 1], turn.gate.turn)
                assert not wrong, f"{wrong} {self._told(step, turn, known)}"
        assert await turn.step() is None
        shapes.ended()
        assert turn.result is not None
        return turn, turn.result

    def _told(self, step: Step, turn: Turn, counters: Any) -> str:
        rows = "\n  ".join(
            f"{row.id:32} {facts}" for row, facts in zip(self.script.rows, self.script.facts, strict=False)
        )
        title = f"{self.config.name}: {self.script.name}: move {self.at} took {step.row}"
        return f"{title}\n  {rows}\n{counters}\n{turn.snapshot()}"

    def _arrange(self, event: str, interferer: Interferer) -> None:
        interferer.event, interferer.checks = event, self.config.checks
        interferer.bug = event == "crashed"
        interferer.lost = event == "lost"
        interferer.in_wait = event == "cancelled_waiting"
        self.budget.closed = event == "starved"
        self.key.works = self._event(1) != "failed" and event != "failed"
        if event == "cancelled":
            self.agent.interrupt("stop it")
        if self.script.rows[self.at].source == "CallLLM":
            self.clock.advance(ENOUGH_REST)

    def _event(self, ahead: int) -> str:
        """The event of the row that is taken ``ahead`` moves later."""
        place = self.at + ahead
        return self.script.rows[place].event if place < len(self.script.rows) else ""

    def _history(self) -> list[dict[str, Any]] | None:
        if not {"overflow", "outgrown", "oversized"} & set(self.script.events):
            return None
        if self.script.facts[0].solid:
            return [{"role": role, "content": role} for role in ("user", "assistant")]
        return talk(12, self._words(24))

    def _message(self) -> str:
        return self._words(1) if self.script.facts[0].solid else GO

    def _words(self, share: int) -> str:
        """A part of all that is there before the turn."""
        tokens = OVER if self.script.facts[0].over else UNDER
        return "words and more words " * (tokens * 4 // 21 // share)

    # The model

    def _answer(self, body: dict[str, Any]) -> Any:
        row = self.script.rows[self.at]
        if row.source == "Compress":
            return self._summary(body)
        reply = self._failure() if row.event == "error" else self._reply(row.event)
        if row.event == "error" or not self.config.window:
            return reply
        chars = len(json.dumps(body, ensure_ascii=False))
        usage = Usage(input=int(chars / 4 * (2.4 if self.script.facts[self.at + 1].over else 0.25)), output=5)
        return replace(reply, usage=usage)

    def _failure(self) -> Any:
        event = self._event(1)
        if self.script.facts[self.at + 1].breaker_open:
            return Failure("stale", "nothing arrived", exception="StaleStream")
        if event == "repairable":
            repairs = self._repairs_here()
            self.repairs += 1
            return REPAIRABLE[repairs] if repairs < len(REPAIRABLE) else self._cap()
        if event == "summary_failed" and self._event(2) == "failed":
            return FAILURES["overflow"]
        return FAILURES[event]

    def _repairs_here(self) -> int:
        """How many repairs were done on the provider in use: a fallback starts afresh."""
        rows = self.script.rows[: self.at]
        since = max((number for number, row in enumerate(rows) if "fallbacks" in row.spends), default=-1)
        return sum("repairs" in row.spends for row in rows[since + 1 :])

    def _cap(self) -> Any:
        most = 20_000 - 500 * self.repairs
        return status(
            400,
            error(f"max_tokens is too large: 90000. This model supports at most {most} completion tokens."),
        )

    def _reply(self, event: str) -> Any:
        self.made += 1
        if event == "tools":
            return self._calls()
        if event == "blank":
            return reasoning("hm, let me see") if self._event(1).startswith("thought") else blank()
        return served(REPLIES["text" if event in ("invalid_output", "blocked") else event].example)

    def _calls(self) -> Reply:
        match self._event(1):
            case "unknown_tools":
                return tools(call("nope"))
            case "bad_json":
                return bad_json()
            case "halted":
                return tools(call("fail"))
            case "done" | "done_free":
                name = self.script.facts[self.at + 2].tool
                key = {"echo": "text", "todo": "items", "write": "path", "execute_code": "code"}[name]
                said = "all noted." if name == "todo" else ""
                return tools(call(name, {key: f"{name}-{self.made}"}), text=said)
        return tools(call("echo", {"text": f"n{self.made}"}))

    def _summary(self, body: dict[str, Any]) -> Reply:
        """As long as the compaction must fail, or must leave enough, or not; none when the script says so. An
        account that is limited is no reason to do without a model."""
        event, after = self._event(0), self.script.facts[self.at + 1]
        asked = len(json.dumps(body, ensure_ascii=False))
        if event == "unsummarized":
            return status(429) if "unchanged" in (self._event(1), self._event(2)) else text("")
        if event != "compressed":
            return text("so much " * (asked // 8 + 20_000))
        return text("so much " * int(asked * (0.85 if after.over or after.shrunk < 3 else 0.1) / 8))


def settings_of(config: Config) -> Settings:
    """The settings that give the limits of ``config``; made once a configuration, which costs more than a
    turn."""
    if config.name not in SETTINGS:
        SETTINGS[config.name] = Settings.of(settings_in(config))
    return SETTINGS[config.name]


SETTINGS: dict[str, Settings] = {}


def settings_in(config: Config) -> dict[str, Any]:
    """The same as a mapping."""
    limits = config.limits
    return {
        "max_iterations": limits["iterations"],
        "api_max_retries": limits["retries"] + 1,
        "max_attempts_per_turn": limits["attempts"],
        "max_lost_requests": limits["lost_requests"],
        "max_attempts_per_call_block": limits["sends"],
        "invalid_tool_strikes": limits["invalid_tool_rounds"] + 1,
        "invalid_json_retries": limits["reasks"],
        "output_retries": limits["revisions"],
        "budget": {"grace_call": limits["summary_calls"] > 0, "max_free_rounds": limits["free_rounds"]},
        "length": {"max_continuations": limits["continuations"], "tool_retries": limits["cut_calls"]},
        "continuation": {
            "acks_enabled": True, "ack": limits["acks"], "scratchpad": limits["scratchpads"],
            "verify_enabled": True, "verify": limits["verifies"], "incomplete": limits["incompletes"],
        },
        "empty": {"nudges": limits["nudges"], "prefills": limits["thinking_prefills"], "retries": limits["empties"]},
        "compression": {
            "enabled": config.compression, "max_per_streak": limits["overflows"], "preflight_passes": limits["compactions"],
            "tail_floor": 3, "without_model": bool(limits["modelless_compactions"]),
        },
        "credential": {"auth_refresh_max": limits["rekeys"]},
        "guardrail": {"hard_stop": True, "stop_same": 1},
        **({"stale": {"giveup": 1}} if config.silent else {}),
        "poll": {"control": 0.001},
        "dump_failed_requests": False,
    }  # fmt: skip
