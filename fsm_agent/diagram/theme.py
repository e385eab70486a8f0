"""Colours and style sheet of the SVG: a light theme, and a dark one where the viewer asks for it.

All rules are under ``.fsm``, so the picture can be put into a page. A reader of a journal highlights a state,
arrow, event or rung by a class on its element (see ``svg``), never by drawing again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tone:
    """Colours of one state: the strip behind its name, and its border, arrows and labels."""

    strip: str
    line: str


@dataclass(frozen=True, slots=True)
class Theme:
    """Every colour of one theme. ``tones`` go round the states; ``final`` and ``out`` are the end and the way
    to it; ``good``, ``bad`` and ``warn`` are those of marks."""

    page: str
    box: str
    ink: str
    quiet: str
    tones: tuple[Tone, ...]
    final: Tone
    out: str
    good: str
    bad: str
    warn: str


LIGHT = Theme(
    page="#ffffff",
    box="#ffffff",
    ink="#0f172a",
    quiet="#566176",
    tones=(
        Tone("#cffafe", "#0e7490"),
        Tone("#ede9fe", "#6d28d9"),
        Tone("#fef3c7", "#a34a07"),
        Tone("#fee2e2", "#b91c1c"),
        Tone("#dbeafe", "#1d4ed8"),
        Tone("#ccfbf1", "#0f766e"),
        Tone("#fce7f3", "#be185d"),
    ),
    final=Tone("#dcfce7", "#15803d"),
    out="#15803d",
    good="#15803d",
    bad="#c81e1e",
    warn="#a34a07",
)
DARK = Theme(
    page="#0d1117",
    box="#151b25",
    ink="#e6edf3",
    quiet="#9aa7b8",
    tones=(
        Tone("#164e63", "#67e8f9"),
        Tone("#4c1d95", "#c4b5fd"),
        Tone("#713f12", "#fcd34d"),
        Tone("#7f1d1d", "#fca5a5"),
        Tone("#1e3a8a", "#93c5fd"),
        Tone("#134e4a", "#5eead4"),
        Tone("#831843", "#f9a8d4"),
    ),
    final=Tone("#14532d", "#4ade80"),
    out="#4ade80",
    good="#4ade80",
    bad="#ff8080",
    warn="#fbbf24",
)
SHAPES = """\
.fsm text { font: 13px "DejaVu Sans", Verdana, sans-serif; }
.fsm .name { font-size: 17px; font-weight: bold; }
.fsm .event, .fsm .heading { font-weight: bold; }
.fsm .heading { font-size: 15px; }
.fsm .exit { font-style: italic; }
.fsm .label { text-anchor: middle; }
.fsm .box { stroke-width: 1.3; }
.fsm .line { fill: none; stroke-width: 1.6; }
.fsm .out .line { stroke-width: 2.4; }
"""
MARKED = """\
.fsm .badge { font-size: 13px; text-anchor: end; }
.fsm .tail { font-size: 12px; font-weight: bold; }
.fsm g.unused, .fsm g.kept { opacity: 0.55; }
.fsm g.state.unused, .fsm g.state.kept { opacity: 1; }
.fsm tspan.unused, .fsm tspan.kept { fill-opacity: 0.65; }
.fsm g.unused tspan, .fsm g.kept tspan { fill-opacity: 1; }
.fsm .arrow.never .line, .fsm .arrow.removed .line { stroke-dasharray: 6 4; }
.fsm tspan.removed { text-decoration: line-through; }
.fsm tspan.added, .fsm tspan.changed { font-weight: bold; }
.fsm .state.added .box, .fsm .state.changed .box, .fsm .state.removed .box { stroke-width: 2.8; }
.fsm .state.removed .box { stroke-dasharray: 6 4; }
"""
"""Shapes of what runs did and of what changed; only in pictures that have such marks."""


def tone_names(states: Sequence[str], final: str) -> Mapping[str, str]:
    """The class that carries each state's colours."""
    others = [state for state in dict.fromkeys(states) if state != final]
    return {**{state: f"t{number % len(LIGHT.tones)}" for number, state in enumerate(others)}, final: "final"}


def style_sheet(*, marked: bool = False, judged: bool = False) -> str:
    """The CSS of a picture. ``marked``: with the rules for marks; ``judged``: red, green and amber are theirs
    alone."""
    light, dark = (
        _colours(theme) + (_plain(theme) if judged else "") + (_marks(theme) if marked else "")
        for theme in (LIGHT, DARK)
    )
    nested = "".join(f"  {rule}\n" for rule in dark.splitlines())
    return f"{SHAPES}{MARKED if marked else ''}{light}@media (prefers-color-scheme: dark) {{\n{nested}}}\n"


def _plain(theme: Theme) -> str:
    """Arrows and borders without the colours of their states."""
    return (
        f".fsm .arrow .line, .fsm .state .box {{ stroke: {theme.quiet}; }} .fsm .arrow .head, .fsm .arrow"
        f" .label {{ fill: {theme.ink}; }} .fsm .out.exit {{ fill: {theme.quiet}; }}\n"
    )


def _marks(theme: Theme) -> str:
    colours = {
        "never": theme.bad,
        "partly": theme.warn,
        "added": theme.good,
        "removed": theme.bad,
        "changed": theme.warn,
    }
    rules = [f".fsm .badge, .fsm .tail {{ fill: {theme.ink}; }}"]
    for name, colour in colours.items():
        rules.append(
            f".fsm .{name}.arrow .line, .fsm .state.{name} .box {{ stroke: {colour}; }} .fsm .{name}.arrow"
            f" .head, .fsm .{name}.arrow .label, .fsm .{name} > .event, .fsm .state.{name} .badge, .fsm"
            f" tspan.{name}, .fsm tspan.out.{name} {{ fill: {colour}; }}"
        )
    return "".join(f"{rule}\n" for rule in rules)


def _colours(theme: Theme) -> str:
    tones = {**{f"t{number}": tone for number, tone in enumerate(theme.tones)}, "final": theme.final}
    rules = [
        f".fsm .page, .fsm .halo {{ fill: {theme.page}; }}",
        f".fsm .box {{ fill: {theme.box}; }}",
        f".fsm text {{ fill: {theme.ink}; }}",
        f".fsm .exit, .fsm .else, .fsm .note, .fsm .intro {{ fill: {theme.quiet}; }}",
        *(
            f".fsm .{name} .box, .fsm .{name} .line {{ stroke: {tone.line}; }} "
            f".fsm .{name} .strip {{ fill: {tone.strip}; }} "
            f".fsm .{name} .head, .fsm .{name} .label {{ fill: {tone.line}; }}"
            for name, tone in tones.items()
        ),
        (
            f".fsm .out .line {{ stroke: {theme.out}; }} .fsm .out .head, .fsm .out .label, .fsm .out.exit {{"
            f" fill: {theme.out}; }}"
        ),
    ]
    return "".join(f"{rule}\n" for rule in rules)
