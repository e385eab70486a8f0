"""What the states of the turn remember besides their counters, as far as it decides which events they can
report.

The table knows budgets only. That a prompt is over the threshold, that tools were run, or that another key is
ready are facts: this is the model of them by which scripts for the real states are searched. Every script is
then played on the engine, and after each move the facts of the model are compared with those of the turn
(``fsm_agent_states.logic.facts``), where these have the same names. So a model that is wrong about one, or
allows too much, fails there; what it forbids is listed in ``test_row_coverage``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

from fsm_agent.conversation.effects import Runtime
from fsm_agent.conversation.messages import Message, ModelReply
from fsm_agent.fsm.table import Row
from fsm_agent.fsm.verify.reach import limit_names
from fsm_agent.settings import Settings
from fsm_agent_states.logic.facts import FACTS
from fsm_agent_states.logic.parts import Keep
from fsm_agent_states.replies import REPLIES, Received, ReplyKind
from fsm_agent_states.table import TURN
from fsm_agent_states.turn import TurnState

FIXED = {"rebuilds": 1, "repairs": 10}
"""Limits that no setting changes."""
MOST_SHRINKS = 3
"""Compactions that the history of a played turn is long enough for."""
GO, LONG = "go", "words and more words " * 10
"""What the user says; the second where the newest request is to be large."""
CONTINUES = {"continuation": {"acks_enabled": True, "verify_enabled": True}}
"""Settings with which every kind of reply is possible."""
OVER = {"over_cost", "over_tokens", "over_time"}
CHECKED = {"blocked", "invalid_output", "unaffordable", "handed_over", *OVER}
"""Events of what only some agents have."""


class Known(NamedTuple):
    """Facts of the turn by their names, and of what is around it. ``ordered``: the fact of the recovery that
    the next BuildMessages performs, where it matters. ``must``: the only event of the next ClassifyError.
    ``over``: the next estimate is over the threshold. ``useless``: compactions held against the next one.
    ``solid``: what is large is the newest request, so that no compaction makes it smaller. ``failed``: a model
    was asked for the summary at hand and gave none; ``resting``: the last of them, a short while ago;
    ``unaided``: summaries that were made without one in a row."""

    after_tools: bool = False
    tool: str = ""
    text_begun: bool = False
    text_prior: bool = False
    text_held: bool = False
    text_unchecked: bool = False
    unverified: bool = False
    answers_errors: bool = False
    breaker_open: bool = False
    asks_summary: bool = False
    goes_without_model: bool = False
    failed: bool = False
    resting: bool = False
    unaided: int = 0
    ordered: str = ""
    must: str = ""
    refused: bool = False
    over: bool = False
    muted: bool = False
    forced: bool = False
    shrunk: int = 0
    judged: bool = True
    useless: int = 0
    compaction_blocked: bool = False
    prepaid: bool = False
    refreshes: int = 0
    solid: bool = False


KEPT: Mapping[Keep, Callable[[Known], Known]] = {
    "fragment": lambda facts: facts._replace(text_begun=True),
    "held": lambda facts: facts._replace(text_held=True, text_begun=False),
    "unchecked": lambda facts: facts._replace(text_held=True, text_begun=False, text_unchecked=True),
}
"""What is remembered of a text that is kept in one of these ways."""


@cache
def triaged(reply: ModelReply, holding: frozenset[str]) -> ReplyKind:
    """The kind of a reply when just these facts hold of the turn, as CallLLM finds it."""
    asked = LONG if "solid" in holding else GO
    turn = TurnState.of(
        turn_id="a turn", session_id="a session", settings=Settings.of(CONTINUES), user_content=asked,
        runtime=Runtime("any", "any"), rows=[Message("user", asked)],
    )  # fmt: skip
    got = Received.of(reply)
    return next(
        kind
        for kind, rule in REPLIES.items()
        if holding.issuperset(fact.__name__ for fact in rule.given) and rule.when(turn, got)
    )


@dataclass(frozen=True)
class Config:
    """A configuration of the real turn. ``chain``: the windows of the fallbacks (``ring``: the last one leads
    back to the primary, which is wider). ``keys``: several that rotate, or one that can be refreshed.
    ``silent``: what is overloaded says nothing at all, and is not asked again after that. ``window``: is it
    known and finite? ``tiny_from``: from this place of the chain on, a local model has too
    small a window; -1 for nowhere. ``checks``: guardrails, a type of the answer, limits, and other agents."""

    limits: Mapping[str, int]
    chain: Literal["equal", "wider", "ring"] = "equal"
    keys: Literal["pool", "refresh"] = "pool"
    silent: bool = False
    window: bool = False
    compression: bool = True
    tiny_from: int = -1
    checks: bool = False
    name: str = field(default="", compare=False)

    def next_is_wider(self, index: int) -> bool:
        """Has the entry after ``index`` of the chain a wider window?"""
        count = self.limits["fallbacks"]
        if not self.window:
            return False
        return (self.chain == "wider" and index < count) or (self.chain == "ring" and index == count > 0)


class TurnFacts:
    """``fsm_agent.testing.Facts`` of the real turn under a ``Config``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def begin(self) -> Iterator[Known]:
        yield Known()
        if self.config.silent:
            yield Known(breaker_open=True)
        if self.config.window and self.config.compression:
            yield Known(over=True)
            if self.config.limits["overflows"]:
                yield Known(solid=True)
                yield Known(over=True, solid=True)

    def after(self, facts: Known, row: Row, counts: Mapping[str, int]) -> Iterator[Known]:
        if row.event in CHECKED and not self.config.checks:
            return
        if row.source == "Prepare":
            yield facts
        else:
            then: Iterator[Known] = getattr(self, f"_{row.source}")(facts, row, counts)
            for known in then:
                yield self._ordered(known, row) if row.dest == "BuildMessages" else known

    def _ordered(self, facts: Known, row: Row) -> Known:
        """Which of the recoveries that ``row`` spent matters for what the next BuildMessages can report."""
        ordered = ""
        if {"retries", "rebuilds"} & set(row.spends):
            ordered = "waits_at_once"
        elif "empties" in row.spends or (row.event == "compressed" and facts.forced):
            ordered = "waits_later"
        elif row.event == "bad_key" and "rekeys" in row.spends:
            ordered = "rekeys"
        elif row.event == "summary_failed" and "fallbacks" in row.spends:
            ordered = "switches"
        return facts._replace(ordered=ordered)

    def follows(self, facts: Known, counts: Mapping[str, int]) -> dict[str, bool]:
        """Facts of the turn that follow from what the model knows and from the counters."""
        toolless, speaks = counts["summary_calls"] > 0, facts.text_held or facts.text_begun
        unpaid = not (toolless or counts["opened"] or facts.prepaid)
        return {
            "toolless": toolless,
            "opens_iteration": unpaid and counts["iterations"] < self.config.limits["iterations"],
            "has_spoken": toolless and not counts["sends"] and speaks,
            "only_asked": not facts.after_tools,
            "on_primary": not counts["fallbacks"],
            "next_is_wider": self.config.next_is_wider(counts["fallbacks"]),
        }

    def differences(self, facts: Known, turn: Any) -> dict[str, bool]:
        """What the turn says of the facts that the model knows by the same names, where it differs."""
        known = {name: value for name, value in facts._asdict().items() if name in FACTS}
        known |= self.follows(facts, turn.counters()) | ({facts.ordered: True} if facts.ordered else {})
        if facts.refused or turn.state == "BuildMessages":  # a switch that was spent is not made, or not yet
            del known["on_primary"], known["next_is_wider"]
        return {name: said for name, value in known.items() if (said := FACTS[name](turn)) != value}

    # States

    def _BuildMessages(self, facts: Known, row: Row, counts: Mapping[str, int]) -> Iterator[Known]:
        config, follows = self.config, self.follows(facts, counts)
        opens, speaks = follows["opens_iteration"], follows["has_spoken"]
        broken = facts.breaker_open and facts.ordered != "switches"
        tiny = 0 <= config.tiny_from <= counts["fallbacks"]
        held = facts.muted or facts.compaction_blocked
        over = facts.over and config.window and config.compression and not held
        possible = {
            "crashed": True, "cancelled": facts.ordered != "waits_at_once",
            "cancelled_waiting": facts.ordered in ("waits_at_once", "waits_later"),
            "failed": (broken and not speaks) or self._can_fail(facts, counts), "spoken": speaks,
            "starved": opens, "window_too_small": not broken and not speaks and tiny,
            "built": not broken and not speaks and not tiny and not over,
            "oversized": not broken and not speaks and not tiny and over,
        }  # fmt: skip
        possible |= dict.fromkeys(
            ("over_cost", "over_tokens", "over_time"), not broken and not speaks and not tiny
        )
        if not possible[row.event]:
            return
        paid = (opens or facts.prepaid) and row.event != "starved"
        if row.event == "failed":
            must = "summary_failed" if follows["toolless"] else "rejected"
            refused = not broken and facts.ordered == "switches"
            yield facts._replace(
                must=must, refused=refused, ordered="", breaker_open=False, prepaid=paid, forced=False
            )
            return
        yield facts._replace(prepaid=paid, forced=False, ordered="", tool="")

    def _can_fail(self, facts: Known, counts: Mapping[str, int]) -> bool:
        if facts.ordered == "rekeys":
            return self.config.keys == "refresh"
        return facts.ordered == "switches" and self.config.window and self.config.chain == "equal"

    def _CallLLM(self, facts: Known, row: Row, counts: Mapping[str, int]) -> Iterator[Known]:
        follows, event = self.follows(facts, counts), row.event
        facts = facts._replace(prepaid=False, resting=False)
        if event in ("error", "cancelled", "crashed", "lost"):
            yield facts
            if event == "error" and self.config.silent:
                must = "summary_failed" if follows["toolless"] else "overloaded"
                yield facts._replace(breaker_open=True, must=must)
            return
        holding = frozenset(name for name, holds in (facts._asdict() | follows).items() if holds is True)
        if event in REPLIES:
            if triaged(REPLIES[event].example, holding) != event:
                return
            keep = KEPT.get(REPLIES[event].keeps)
            facts = keep(facts) if keep else facts
        elif event == "invalid_output":
            if follows["toolless"]:
                return
            facts = facts._replace(text_begun=False, text_held=False)
        facts = facts._replace(muted=False)
        yield self._read(facts, False)
        if self.config.window and self.config.compression:
            yield self._read(facts, True)

    def _read(self, facts: Known, over: bool) -> Known:
        """A reply says how large the prompt was, and by that whether the last compaction helped."""
        if facts.shrunk and self.config.window:
            useless = facts.useless + (not facts.judged) if over else 0
            facts = self._judged(facts._replace(useless=useless, judged=True))
        return facts._replace(over=over)

    def _judged(self, facts: Known) -> Known:
        return facts._replace(compaction_blocked=facts.useless >= 2 or facts.unaided >= 2 or facts.resting)

    def _ClassifyError(self, facts: Known, row: Row, counts: Mapping[str, int]) -> Iterator[Known]:
        event, follows, config = row.event, self.follows(facts, counts), self.config
        if event in ("cancelled", "crashed"):
            yield facts
            return
        if facts.must not in ("", event) or follows["toolless"] != (event == "summary_failed"):
            return
        if "fallbacks" in row.spends:
            facts = facts._replace(refreshes=0, breaker_open=False)  # the next entry is another one
        if facts.refused and "fallbacks" in row.spends:
            return  # the chain is known to be at its end, whatever its limit was
        wider, pool = follows["next_is_wider"], config.keys == "pool" and config.limits["rekeys"] > 0
        refreshable = config.keys == "refresh" and facts.refreshes < config.limits["rekeys"]
        possible = {
            "repairable": not config.window or counts["repairs"] < 9, "bad_key": pool or refreshable,
            "key_limited": pool, "unreachable": follows["on_primary"],
            "overflow": config.compression and not wider, "outgrown": config.compression and wider,
            "compression_off": not config.compression,
        }  # fmt: skip
        if possible.get(event, True):
            refreshes = facts.refreshes + (config.keys == "refresh" and "rekeys" in row.spends)
            forced = event in ("overflow", "outgrown")
            yield facts._replace(must="", forced=forced, refreshes=refreshes)

    def _Compress(self, facts: Known, row: Row, counts: Mapping[str, int]) -> Iterator[Known]:
        event, wider = row.event, self.follows(facts, counts)["next_is_wider"]
        asked, bare = facts.asks_summary, facts.goes_without_model
        done = facts._replace(asks_summary=False, goes_without_model=False, failed=False)
        if event == "crashed" or (event == "cancelled" and not bare):
            yield done
        elif event == "unsummarized" and not bare and not facts.solid and facts.shrunk < MOST_SHRINKS:
            last = asked and counts["summarizers"] >= self.config.limits["summarizers"]
            known = self._judged(facts._replace(resting=True)) if last else facts
            yield self._summarized(known._replace(failed=asked), row)
        elif (
            event == "unaffordable" and not (asked or bare or facts.solid) and facts.shrunk < MOST_SHRINKS
        ) or (event == "lost" and asked):
            yield self._summarized(facts, row)
        elif event == "compressed" and (asked or bare):
            unaided = facts.unaided + 1 if bare else 0
            shrunk = done._replace(
                shrunk=facts.shrunk + 1, judged=False, muted=not facts.forced, unaided=unaided
            )
            yield shrunk._replace(over=False)
            if facts.forced and facts.over and wider and asked:
                yield shrunk
        elif (event == "stuck" and facts.forced and facts.solid and not wider) or (
            event == "outgrown" and facts.forced and wider and (asked or facts.solid)
        ):
            yield self._gained_nothing(done)
        elif event == "unchanged" and not facts.forced and (facts.solid or asked or (bare and facts.failed)):
            yield self._gained_nothing(done)._replace(muted=True)

    def _summarized(self, facts: Known, row: Row) -> Known:
        """Who is to give the summary next, by the row that was taken."""
        asks = "attempts" in row.spends
        keeps = facts.failed if row.dest == "Compress" else False
        return facts._replace(
            asks_summary=asks, goes_without_model="modelless_compactions" in row.spends, failed=keeps
        )

    def _gained_nothing(self, facts: Known) -> Known:
        return self._judged(facts._replace(useless=facts.useless + 1))

    def _ExecuteTools(self, facts: Known, row: Row, counts: Mapping[str, int]) -> Iterator[Known]:
        event = row.event
        if facts.answers_errors != (event == "answered") and event != "crashed":
            return
        ran = facts._replace(
            after_tools=True, text_begun=False, text_prior=False, text_held=facts.text_unchecked,
            answers_errors=False,
        )  # fmt: skip
        if event == "done":
            yield ran._replace(tool="echo", unverified=False)
            yield ran._replace(tool="todo", unverified=False, text_prior=not self.config.checks)
            yield ran._replace(tool="write", unverified=True)
        elif event == "done_free":
            yield ran._replace(tool="execute_code", unverified=False)
        elif event in ("answered", "unknown_tools"):
            yield ran
        else:
            yield facts._replace(answers_errors=row.dest == "ExecuteTools")

    def _EmptyRecovery(self, facts: Known, row: Row, counts: Mapping[str, int]) -> Iterator[Known]:
        event = row.event
        if facts.text_begun:
            possible = event == "streamed"
        elif facts.text_prior:
            possible = event == "prior"
        else:
            possible = event in (
                ("after_tools", "thought_after_tools") if facts.after_tools else ("thought", "nothing")
            )
        if possible or event in ("cancelled", "crashed"):
            yield facts


NOTHING = dict.fromkeys(sorted(set(limit_names(TURN)) - set(FIXED)), 0)
NOTHING |= {"iterations": 1, "attempts": 60, "sends": 30, "summarizers": 1, "modelless_compactions": 1}


def config(name: str, **given: Any) -> Config:
    """``NOTHING`` but what is given: limits by their names, the rest as ``Config`` has it."""
    own = {key: given.pop(key) for key in tuple(given) if key in NOTHING}
    limits = NOTHING | own
    limits["patience"] = min(1, limits["retries"])
    return Config(limits | FIXED, name=name, **given)


GROUPS: dict[str, dict[str, Any]] = {
    "continuations": dict.fromkeys(
        ("continuations", "cut_calls", "incompletes", "scratchpads", "acks", "verifies"), 1
    ),
    "tools": {"invalid_tool_rounds": 1, "reasks": 1, "free_rounds": 1},
    "blanks": {"nudges": 1, "thinking_prefills": 1, "empties": 1},
    "blanks without a nudge": {"thinking_prefills": 1, "empties": 1},
    "asking again": {"empties": 1},
    "errors": {"retries": 2, "rekeys": 1},
    "fallbacks": {"fallbacks": 1, "retries": 2},
    "keys and fallbacks": {"fallbacks": 1, "retries": 1, "rekeys": 1},
    "lost requests": {"lost_requests": 2},
    "no summary": {"modelless_compactions": 0, "lost_requests": 1, "summarizers": 2},
    "silent": {"fallbacks": 1, "retries": 1, "silent": True},
}
SITUATIONS: dict[str, dict[str, Any]] = {
    "capped at three": {"iterations": 3, "attempts": 3, "window": True},
    "capped after a compaction": {"iterations": 3, "attempts": 2, "overflows": 1, "window": True},
    "capped in the last word": {"iterations": 0, "summary_calls": 2, "attempts": 1, "window": True},
    "capped before the last word": {"iterations": 2, "summary_calls": 2, "attempts": 1, "window": True},
    "large, no compaction": {"iterations": 2, "window": True},
    "last word": {"iterations": 2, "summary_calls": 2, "compactions": 1, "window": True},
    "last word, large": {"iterations": 1, "summary_calls": 2, "window": True},
    "no iteration left": {"iterations": 1},
}
CONFIGS = (
    config("nothing"),
    config("no iteration", iterations=0),
    config("starved", iterations=2, summary_calls=2, retries=1, fallbacks=1, window=True),
    config("continuations", iterations=3, **GROUPS["continuations"], invalid_tool_rounds=1, reasks=1),
    config("last words", iterations=1, summary_calls=2, retries=1, fallbacks=1, continuations=1, acks=1,
           invalid_tool_rounds=1, window=True),
    config("blanks", iterations=3, nudges=1, thinking_prefills=1, empties=1, fallbacks=1, free_rounds=1),
    config("errors", iterations=2, retries=2, rekeys=1, fallbacks=1),
    config("keys, no fallback", iterations=1, retries=1, rekeys=1),
    config("no fallback", iterations=1, retries=2),
    config("refreshes", iterations=2, retries=1, rekeys=1, keys="refresh"),
    config("compactions", iterations=2, compactions=2, overflows=2, window=True, summary_calls=2),
    config("lost", iterations=2, lost_requests=1, compactions=1, window=True),
    config("unsummarized", iterations=2, compactions=1, summarizers=2, lost_requests=1,
           modelless_compactions=0, window=True),
    config("silent", iterations=1, retries=1, summary_calls=1, silent=True),
    config("wider", iterations=2, compactions=1, overflows=1, fallbacks=1, window=True, chain="wider"),
    config("ring", iterations=2, compactions=1, overflows=1, fallbacks=1, window=True, chain="ring"),
    config("no compaction", compression=False, window=True),
    config("capped", iterations=2, retries=2, compactions=1, overflows=1, attempts=1, window=True),
    config("capped wider", iterations=1, fallbacks=1, overflows=1, attempts=1, window=True, chain="wider"),
    config("capped block", iterations=2, retries=2, compactions=1, overflows=1, attempts=2, sends=1,
           window=True),
    config("checked", iterations=2, revisions=1, fallbacks=1, compactions=1, window=True, checks=True),
    config("checked, no model", iterations=1, compactions=1, modelless_compactions=0, window=True,
           checks=True),
    config("tiny", tiny_from=0, window=True),
    config("tiny fallback", iterations=3, fallbacks=1, retries=1, tiny_from=1, window=True),
)  # fmt: skip
"""Searched in this order; together they take every row."""
RARE = (
    config("tiny fallback after keys", iterations=1, fallbacks=1, retries=1, rekeys=1, tiny_from=1,
           window=True),
    config("keys, cut calls", iterations=1, cut_calls=1, compactions=1, fallbacks=1, retries=1, rekeys=1,
           window=True),
    config("tiny fallback in the last word", iterations=0, summary_calls=2, fallbacks=1, tiny_from=1,
           window=True),
    config("wider, one send", iterations=1, overflows=1, fallbacks=1, sends=1, window=True, chain="wider"),
    config("wider, one send, no compaction", iterations=1, fallbacks=1, sends=1, window=True, chain="wider"),
    config("wider, cut calls", iterations=1, cut_calls=2, compactions=1, overflows=1, fallbacks=1,
           window=True, chain="wider"),
    config("silent, no iteration", iterations=0, fallbacks=1, silent=True),
    config("silent, again", iterations=1, retries=2, silent=True),
    config("lost, wider", iterations=1, overflows=1, lost_requests=2, fallbacks=1, modelless_compactions=0,
           window=True, chain="wider"),
    config("lost, ring", iterations=1, overflows=1, lost_requests=1, fallbacks=1, window=True, chain="ring"),
    config("lost, forced", iterations=1, overflows=1, lost_requests=2, summarizers=2, window=True),
    config("lost, nothing else", iterations=1, overflows=1, lost_requests=1, modelless_compactions=0,
           window=True),
    config("a summarizer lost", iterations=1, compactions=1, summarizers=2, window=True),
    config("lost, and compacted again", iterations=1, compactions=2, modelless_compactions=0, window=True),
    config("no summary, capped", iterations=1, overflows=1, modelless_compactions=0, attempts=1, window=True),
)  # fmt: skip
WITH_CHECKS: dict[str, dict[str, Any]] = {
    "capped at two": {"iterations": 3, "attempts": 2, "window": True, "compactions": 1, "retries": 1},
    "wider": {"iterations": 2, "overflows": 1, "fallbacks": 1, "window": True, "chain": "wider"},
    "wider, no model": {
        "iterations": 2, "overflows": 1, "fallbacks": 1, "modelless_compactions": 0, "window": True, "chain": "wider",
    },
    "compactions": {"iterations": 3, "compactions": 2, "lost_requests": 1, "summarizers": 2, "window": True},
    "compactions, no model": {
        "iterations": 3, "compactions": 2, "modelless_compactions": 0, "window": True, "summary_calls": 2,
    },
    "capped fallback": {
        "iterations": 3, "fallbacks": 1, "attempts": 1, "revisions": 0, "window": True, "compactions": 1,
    },
    "one send": {
        "iterations": 2, "overflows": 2, "compactions": 1, "modelless_compactions": 0, "sends": 1, "window": True,
    },
    "tiny fallback": {"iterations": 2, "fallbacks": 1, "retries": 1, "tiny_from": 1, "window": True},
    **{group: {"iterations": 3, "summary_calls": 2, **remedies} for group, remedies in GROUPS.items()},
}  # fmt: skip
"""With guardrails, a type of the answer, and limits: what each of them can end, or send back."""


def more_configs() -> Iterator[Config]:
    """For pairs of rows: each group of remedies in each situation. Without any of ``RARE``, ``WITH_CHECKS`` and the
    situations there would be fewer pairs."""
    yield from (*CONFIGS, *RARE)
    for name, given in WITH_CHECKS.items():
        yield config(f"checked, {name}", checks=True, **{"revisions": 1} | given)
    for group, remedies in GROUPS.items():
        for situation, limits in SITUATIONS.items():
            yield config(f"{group}, {situation}", **(limits | remedies))
