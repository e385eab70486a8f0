"""Why two rows that follow each other in the table never do in a real turn: facts that no counter knows."""

from __future__ import annotations

from collections.abc import Callable

from fsm_agent.fsm.table import Row

BY_HAND = {
    ("Compress.compressed", "BuildMessages.window_too_small"),  # too small even for the prompt
    ("BuildMessages.oversized/5", "BuildMessages.built/2"),  # only the tools were too much
    ("ClassifyError.overflow/2", "Compress.outgrown/1"),  # smaller than the next model's
    ("ClassifyError.overflow/2", "Compress.outgrown/2"),  # the same, on a chain that leads back
    ("Compress.unsummarized/3", "BuildMessages.window_too_small"),  # too small, and nothing was made shorter
    ("Compress.lost/3", "BuildMessages.window_too_small"),
    ("Compress.unaffordable/2", "BuildMessages.window_too_small"),
    ("BuildMessages.oversized/2", "Compress.compressed"),  # an old result need only be left out
    ("ClassifyError.overflow/2", "Compress.compressed"),
    ("ClassifyError.outgrown/2", "Compress.compressed"),
}
"""Played by tests of their own. The first and those from the third to the seventh: a refusal names a window
that was not known before."""
ASKS = ("summarizer", "same again")
Forbids = Callable[[Row, Row], bool]


def _opens(row: Row) -> bool:
    return "opened" in row.spends


def _keeps_open(row: Row) -> bool:
    """After this row a call block is open. A request that was not sent, because the model is silent, has
    opened none."""
    same = {*(f"CallLLM.{rung}/1" for rung in ("lost", "cut_call", "no_summary"))}
    same |= {"ExecuteTools.done_free/1", "Compress.outgrown/1"}
    recovers = row.source == "ClassifyError" and row.id != "ClassifyError.rejected/1"
    return recovers or row.id in same or _opens(row)


def _needs_closed(row: Row) -> bool:
    return row.event == "starved" or (
        row.event != "spoken" and row.rung in ("send", "summarize", "⇥ budget_exhausted")
    )


def _door(row: Row) -> bool:
    return row.source == "BuildMessages"


FAILS = {"Prepare.ready", "BuildMessages.starved/1"} | {
    f"ClassifyError.{rung}"
    for rung in ("bad_key/1", "summary_failed/1", "summary_failed/2", "overloaded/1", "overloaded/3")
}
"""Rows after which a recovery can fail, or the breaker be open."""
REASONS: dict[str, Forbids] = {
    "only a refresh, or a fallback to a model that is not wider, can fail; or the model was silent": lambda a, b: (
        b.event == "failed" and a.id not in FAILS
    ),
    "nothing is waited for": lambda a, b: (
        b.event == "cancelled_waiting" and not {"retries", "rebuilds", "empties"} & set(a.spends) and a.event != "compressed"
    ),
    "an interrupt in the visit that waits is one in the wait": lambda a, b: (
        _door(b) and b.event == "cancelled" and bool({"retries", "rebuilds"} & set(a.spends))
    ),
    "text is used up before the first request of the last word, never later": lambda a, b: (
        b.event == "spoken" and not ("summary_calls" in a.spends and _opens(a))
    ),
    "a recovery that failed leaves the error what it was, less what was tried": lambda a, b: (
        a.event == "failed"
        and b.event not in ("rejected", "cancelled", "crashed")
        and b.event != "summary_failed"
    ),
    "calls that are not JSON are answered right away, others are not": lambda a, b: (
        (b.event == "answered" and a.id != "ExecuteTools.bad_json/2")
        or (a.id == "ExecuteTools.bad_json/2" and b.event not in ("answered", "crashed"))
    ),
    "the block is open": lambda a, b: _door(b) and _keeps_open(a) and _needs_closed(b),
    "the iteration was paid before the compaction, or before the model was found to be silent": lambda a, b: (
        (a.source == "Compress" or a.id == "ClassifyError.rejected/1") and b.event == "starved"
    ),
    "a summarizer that failed is not asked again for a while": lambda a, b: (
        a.id == "Compress.unsummarized/3" and b.event == "oversized" and b.id != "BuildMessages.oversized/1"
    ),
    "a compaction that we wished for and that was not made leaves the estimate where it was": lambda a, b: (
        a.id in ("Compress.lost/3", "Compress.unaffordable/2") and b.event == "built" and _needs_closed(b)
    ),
    "what a summary may cost is asked when a compaction begins": lambda a, b: (
        a.source == "Compress" and b.event == "unaffordable"
    ),
    "who was not asked for a summary has not failed at it": lambda a, b: (
        a.id == "Compress.unaffordable/1" and b.event == "unchanged"
    ),
    "after a compaction that we wished for the estimate is muted": lambda a, b: (
        b.event == "oversized" and (a.event == "unchanged" or (a.event == "compressed" and _needs_closed(b)))
    ),
    "a forced compaction is never just unchanged, and one that we wished for is never stuck": lambda a, b: (
        b.source == "Compress"
        and ((_door(a) and b.event in ("stuck", "outgrown")) or (a.source == "ClassifyError" and b.event == "unchanged"))
    ),
    "a summary that a refusal asks for is cut to measure": lambda a, b: a.source == "Compress" and b.event == "stuck",
    "what is to go is known before a summarizer is asked": lambda a, b: (
        b.source == "Compress" and b.event == "lost" and a.rung not in ASKS
    ),
    "without a model a summary is as short as was planned": lambda a, b: (
        a.rung == "no model" and b.event == "outgrown"
    ),
    "without a model no summarizer is asked": lambda a, b: (
        a.rung == "no model" and b.event in ("unsummarized", "lost", "cancelled")
    ),

    "a window that a refusal names is never wider than the one that was known": lambda a, b: (
        a.source == "ClassifyError" and a.event == "outgrown" and b.event == "stuck"
    ),
    "the last word goes out in a block that is open already": lambda a, b: (
        b.event in ("summary", "no_summary") and a.rung == "send"
    ),
    "over the threshold a block begins with a compaction, and only a fallback gives it back": lambda a, b: (
        b.rung == "compact"
        and (a.source == "ClassifyError" or a.id == "CallLLM.lost/1")
        and "fallbacks" not in a.spends
    ),
    "the estimate changes in between by the tools alone, which the last word leaves out": lambda a, b: (
        _door(a)
        and _door(b)
        and {a.event, b.event} == {"built", "oversized"}
        and not (a.event == "oversized" and "summary_calls" in a.spends)
    ),
    "the window does not get smaller here": lambda a, b: (
        b.event == "window_too_small"
        and a.event != "compressed"
        and a.rung != "leave it"
        and (("fallbacks" not in a.spends and a.source != "Prepare") or a.event == "outgrown")
    ),
}  # fmt: skip


def why_not(first: Row, second: Row) -> str:
    """The reason for which a real turn never takes ``second`` right after ``first``; empty when it may."""
    return next((reason for reason, forbids in REASONS.items() if forbids(first, second)), "")
