"""A backtest for people and programs: Markdown for a pull request, one page of HTML, JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.backtest.run import Found
from fsm_agent.backtest.verdict import KINDS, Kind, Side, Verdict
from fsm_agent.support.texts import escape_markdown

ORDER: Sequence[Kind] = ("differs", "missing", "requests", "refused")
"""What a reader looks for first."""
ALL_THE_SAME = "All recorded turns take the same moves"
MOST = 20
"""Groups of one kind that a report lists; the last line counts the others."""


@dataclass(frozen=True, slots=True)
class Group:
    """Turns with the same verdict for the same reason. ``what`` says it in a line; ``first`` is the oldest of
    them."""

    kind: Kind
    what: str
    first: Verdict
    count: int


def groups(found: Found, *kinds: Kind) -> list[Group]:
    """The groups of these kinds, the largest first."""
    by_reason: dict[tuple[Kind, str], list[Verdict]] = {}
    for verdict in found.of(*kinds):
        by_reason.setdefault((verdict.kind, reason(verdict)), []).append(verdict)
    made = [Group(kind, what, turns[0], len(turns)) for (kind, what), turns in by_reason.items()]
    return sorted(made, key=lambda group: -group.count)


def reason(verdict: Verdict) -> str:
    """Why a turn has its verdict, in one line."""
    if verdict.kind != "differs":
        return verdict.words[0] if verdict.words else ""
    return f"{verdict.state}: {move(verdict.recorded)}, now {move(verdict.now)}"


def move(side: Side | None) -> str:
    """A move in words: its row, and where it leads."""
    if side is None:
        return "no move"
    row = side.row.partition(".")[2] or side.row
    return f"{row} → {side.dest}{f' ({side.exit})' if side.exit else ''}"


def guards(side: Side | None) -> str:
    """The guards that were looked at for a move, in order."""
    return ", ".join(f"{label}: {'yes' if value else 'no'}" for label, value in side.guards) if side else ""


def headline(found: Found) -> str:
    """The outcome in one sentence."""
    other = len(found.of("differs", "missing"))
    judged = found.total - found.counts["refused"]
    if not judged:
        return f"None of {found.total:,} recorded turns can be played."
    what = f"{other:,} of {judged:,} turns take different moves" if other else ALL_THE_SAME
    requests = found.counts["requests"]
    return f"{what}{f'; {requests:,} send different requests' if requests else ''}."


def as_json(found: Found, live: Mapping[str, Any] | None = None) -> str:
    """The verdicts as JSON; ``live``: what became of forks."""
    told = {"change": found.change, "turns": found.total, "counts": found.counts}
    more = {} if live is None else {"live": live}
    verdicts = [one.to_dict() for one in found.verdicts]
    return json.dumps({**told, "verdicts": verdicts, **more}, ensure_ascii=False)


def as_markdown(found: Found) -> str:
    """The report for a pull request."""
    lines = [f"### Backtest: {escape_markdown(found.change)}", "", f"**{headline(found)}**", ""]
    lines += ["| turns | |", "|---:|---|"]
    lines += [f"| {found.counts[kind]:,} | {words} |" for kind, words in KINDS.items() if found.counts[kind]]
    for kind in ORDER:
        listed = groups(found, kind)
        if not listed:
            continue
        lines += ["", f"#### {KINDS[kind].capitalize()}", "", *_table(kind)]
        lines += [_md_row(group) for group in listed[:MOST]]
        if len(listed) > MOST:
            lines.append(f"\n{len(listed) - MOST:,} more kinds of difference are not listed.")
    return "\n".join(lines) + "\n"


def _table(kind: Kind) -> list[str]:
    if kind == "differs":
        return ["| turns | state | recorded | now | for example |", "|---:|---|---|---|---|"]
    return ["| turns | what | for example |", "|---:|---|---|"]


def _md_row(group: Group) -> str:
    one = group.first
    place = f"`{one.turn}`{f', move {one.at}' if one.at else ''}"
    if group.kind != "differs":
        return f"| {group.count:,} | {escape_markdown(group.what)} | {place} |"
    sides = (
        "<br>".join(map(escape_markdown, (move(side), guards(side)))) for side in (one.recorded, one.now)
    )
    return f"| {group.count:,} | {one.state} | {' | '.join(sides)} | {place} |"


def as_html(found: Found) -> str:
    """The report as one page, without anything from elsewhere: each turn that differs, both sides beside each
    other."""
    counted = "".join(
        f"<tr><td class=n>{found.counts[kind]:,}<td>{words}"
        for kind, words in KINDS.items()
        if found.counts[kind]
    )
    parts = [
        _HEAD,
        f"<h1>Backtest: {html.escape(found.change)}</h1><p class=lead>{html.escape(headline(found))}",
    ]
    parts.append(f"<table>{counted}</table>")
    for kind in ORDER:
        if found.counts[kind]:
            parts.append(f"<h2>{KINDS[kind].capitalize()}</h2>")
            parts += _html_groups(groups(found, kind), found)
    return "\n".join(parts) + "\n"


def _html_groups(listed: Sequence[Group], found: Found) -> Iterator[str]:
    for number, group in enumerate(listed):
        turns = [one for one in found.of(group.kind) if reason(one) == group.what]
        shown = "".join(map(_html_turn, turns[:MOST]))
        more = f"<p>{len(turns) - MOST:,} more turns" if len(turns) > MOST else ""
        summary = f"{group.count:,} × {html.escape(group.what)}"
        yield f"<details{' open' if not number else ''}><summary>{summary}</summary>{shown}{more}</details>"


def _html_turn(one: Verdict) -> str:
    head = f"<h3>{html.escape(one.asked)} <code>{html.escape(one.turn)}</code></h3>"
    if one.kind == "differs":
        sides = "".join(_html_side(*side) for side in (("recorded", one.recorded), ("now", one.now)))
        head += f"<p>Move {one.at} of {one.moves}, in {html.escape(one.state)}<div class=sides>{sides}</div>"
    words = "".join(f"<li>{html.escape(line)}" for line in one.words)
    more = one.requests - len(one.words)
    rest = f"<p>{one.requests:,} requests differ" if one.kind != "refused" and more > 0 else ""
    return f"<article>{head}{f'<ul>{words}</ul>' if words else ''}{rest}</article>"


def _html_side(name: str, side: Side | None) -> str:
    looked = "".join(
        f"<li class={'yes' if value else 'no'}>{html.escape(label)}: {'yes' if value else 'no'}"
        for label, value in (side.guards if side else ())
    )
    return f"<section><b>{name}</b><p>{html.escape(move(side))}<ul>{looked}</ul></section>"


_HEAD = """<!doctype html><html lang=en><meta charset=utf-8>
<meta name=viewport content="width=device-width"><title>Backtest</title><style>
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}
td{padding:.1rem .8rem .1rem 0}
.n{text-align:right;font-variant-numeric:tabular-nums}
.lead{font-size:1.2rem}
summary{cursor:pointer;font-weight:600;margin:.6rem 0}
article{margin:0 0 1rem 1rem}
h3{font-size:1rem;margin:.8rem 0 .2rem}
code{font-size:.85em;opacity:.75}
.sides{display:flex;flex-wrap:wrap;gap:1rem}
section{flex:1 1 18rem;border:1px solid #8886;border-radius:6px;padding:.4rem .8rem}
section p{margin:.2rem 0}
ul{margin:.2rem 0;padding-left:1.2rem}
.yes::marker{content:"✓ "}
.no::marker{content:"✗ "}
</style>"""
