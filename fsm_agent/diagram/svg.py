"""The picture for reviewers and for the debugger: each box is the state's part of the table.

Elements can be addressed without redrawing: ``id="state-CallLLM"``, ``id="arrow-CallLLM-BuildMessages"`` with
``data-rows``, each event line ``data-event`` and ``data-rows``, each rung ``data-rows`` (row ids, separated
by spaces). A mark of the model is a class of the same name. A nested table has a frame below, with ids that
begin with its name: ``id="review.state-Draft"``.
"""

# A diagram has the size of its place. The whole table is unreadable in 830 pixels, so README files show a
# map. A diagram states a width at which its smallest text has 11 pixels. The page of `--html` is one
# self-contained file with its script named by hash in the policy.

# A marked diagram keeps its layout. Overlays, coverage, and diffs compare box by box with the plain diagram,
# so they insert space instead of moving boxes. Graphviz is used only on request: otherwise generated files
# would depend on the machine.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import ceil
from xml.sax.saxutils import escape, quoteattr

from fsm_agent.diagram.geometry import Rect, number
from fsm_agent.diagram.layout import automatic
from fsm_agent.diagram.model import Diagram, StateEntry
from fsm_agent.diagram.scene import (
    HEAD,
    PAD,
    STEP,
    TEXT,
    TITLE,
    Panel,
    Part,
    PlacedArrow,
    PlacedBox,
    scene_of,
    thickness,
)
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.layout import Layout
from fsm_agent.support.installation import install_command

# ----------------------------------------------------------------------------------------------------
# Colors and style sheet of the SVG: a light theme, and a dark one where the viewer asks for it.
#
# All rules are under ``.fsm``, so the picture can be embedded in a page. A reader of a journal highlights a
# state, arrow, event, or rung with a class on its element (see ``svg``), without redrawing.


@dataclass(frozen=True, slots=True)
class Tone:
    """Colors of one state: the strip behind its name, and its border, arrows and labels."""

    strip: str
    line: str


@dataclass(frozen=True, slots=True)
class Theme:
    """Every color of one theme. States use ``tones`` in turn; ``final`` and ``out`` color the end and
    the arrows to it; ``good``, ``bad`` and ``warn`` color marks, ``shares`` the likely, possible, and seldom
    rows."""

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
    shares: tuple[str, str, str]


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
    shares=("#1e3a8a", "#1d4ed8", "#4a6aa8"),
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
    shares=("#dbeafe", "#93c5fd", "#7a97c8"),
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
.fsm .usual .line { stroke-width: 4.2; }
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
"""Styles for marks of runs and changes; only in pictures with such marks."""
EXPECTED = """\
.fsm tspan.likely { font-weight: bold; }
.fsm .arrow.likely .line { stroke-width: 4; }
.fsm .arrow.possible .line { stroke-width: 2.4; }
"""
"""Styles for marks of expected runs."""


def tone_names(states: Sequence[str], final: str) -> Mapping[str, str]:
    """Return the CSS class with each state's colors."""
    others = [state for state in dict.fromkeys(states) if state != final]
    return {**{state: f"t{number % len(LIGHT.tones)}" for number, state in enumerate(others)}, final: "final"}


def style_sheet(*, marked: bool = False, judged: bool = False, expected: bool = False) -> str:
    """Return the CSS of a picture. ``marked``: include the rules for marks; ``expected``: also those for
    shares; ``judged``: use colors for marks only."""
    light, dark = (
        _colors(theme) + (_plain(theme) if judged else "") + (_marks(theme, expected) if marked else "")
        for theme in (LIGHT, DARK)
    )
    nested = "".join(f"  {rule}\n" for rule in dark.splitlines())
    shapes = f"{SHAPES}{MARKED if marked else ''}{EXPECTED if expected else ''}"
    return f"{shapes}{light}@media (prefers-color-scheme: dark) {{\n{nested}}}\n"


def _plain(theme: Theme) -> str:
    """Return rules for arrows and borders without the colors of their states."""
    return (
        f".fsm .arrow .line, .fsm .state .box {{ stroke: {theme.quiet}; }} .fsm .arrow .head, .fsm .arrow"
        f" .label {{ fill: {theme.ink}; }} .fsm .out.exit {{ fill: {theme.quiet}; }}\n"
    )


def _marks(theme: Theme, expected: bool) -> str:
    shares = zip(("likely", "possible", "seldom"), theme.shares, strict=True)
    colors = {
        "never": theme.bad,
        "partly": theme.warn,
        "added": theme.good,
        "removed": theme.bad,
        "changed": theme.warn,
        **(dict(shares) if expected else {}),
    }
    rules = [f".fsm .badge, .fsm .tail {{ fill: {theme.ink}; }}"]
    for name, color in colors.items():
        rules.append(
            f".fsm .{name}.arrow .line, .fsm .state.{name} .box {{ stroke: {color}; }} .fsm .{name}.arrow"
            f" .head, .fsm .{name}.arrow .label, .fsm .{name} > .event, .fsm .state.{name} .badge, .fsm"
            f" tspan.{name}, .fsm tspan.out.{name} {{ fill: {color}; }}"
        )
    return "".join(f"{rule}\n" for rule in rules)


def _colors(theme: Theme) -> str:
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


ROUND = 7.0
READABLE = 11.0
"""Minimum text size in pixels of a picture that is scaled down to a column."""


def as_svg(diagram: Diagram, layout: Layout | None = None, proof_lines: Sequence[str] = ()) -> str:
    """Return the SVG of a diagram. Any ``proof_lines`` fill the panel "Proved for every setting"."""
    size, lines = _draw(diagram, layout, proof_lines)
    column = layout.get("column", size[0]) if layout else size[0]
    shown = min(size[0], max(column, ceil(size[0] * READABLE / TEXT)))
    return "\n".join([*_opening(diagram, size, shown), *lines, "</svg>"]) + "\n"


def without_style(svg: str) -> str:
    """Strip an SVG for a page with its own styles and possibly several pictures: remove style sheet and page
    color, and replace ids with ``data-id``."""
    svg = re.sub(r"<style>.*?</style>\n?", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<rect class="page"[^>]*/>\n?', "", svg, count=1)
    return svg.replace('<g id="', '<g data-id="')


def _draw(
    diagram: Diagram, layout: Layout | None, proof_lines: Sequence[str] = (), prefix: str = ""
) -> tuple[tuple[float, float], list[str]]:
    """Return the size of a picture, and its contents."""
    scene = scene_of(diagram, layout or automatic(diagram), proof_lines)
    tones = tone_names([*diagram.table.states, *diagram.states], diagram.table.final)
    drawn = {row for arrow in diagram.arrows if arrow.way_out for row in arrow.rows}
    lines = [
        *(line for arrow in scene.arrows for line in _arrow(arrow, tones, diagram)),
        *(line for box in scene.boxes for line in _box(box, tones, drawn, diagram)),
        *(line for panel in scene.panels for line in _panel(panel)),
    ]
    lines = [line.replace('<g id="', f'<g id="{prefix}') for line in lines]
    width, height = scene.size
    for one in diagram.nested:
        layout = None if one.caption else one.table.layout  # counts need more space
        size, inside = _draw(one, layout, prefix=f"{one.table.name}.")
        frame = Rect(PAD, PAD, size[0] + 2 * PAD, size[1] + HEAD + PAD)
        name, place = quoteattr(one.table.name), f"translate(0,{number(height)})"
        lines.append(f'<g class="nested" data-table={name} transform="{place}">')
        lines.append(f'<rect class="line" {_place(frame)} rx="{number(ROUND)}" stroke="#8894a8"/>')
        lines.append(_text("name", frame.x + PAD, frame.y + HEAD - 9, escape(one.table.name)))
        lines += [
            f'<g transform="translate({number(2 * PAD)},{number(PAD + HEAD)})">',
            *inside,
            "</g>",
            "</g>",
        ]
        width, height = max(width, frame.right + PAD), height + frame.bottom + PAD
    return (width, height), lines


def _opening(diagram: Diagram, size: tuple[float, float], shown: float) -> Iterator[str]:
    width, height = map(number, size)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fsm" width="{number(shown)}"'
        f' height="{number(size[1] * shown / size[0])}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(diagram.table.name)}>'
    )
    expected = any(arrow.mark in ("likely", "possible", "seldom") for arrow in diagram.arrows)
    marked = bool(diagram.legend)
    yield f"<style>\n{style_sheet(marked=marked, judged=diagram.judged, expected=expected)}</style>"
    yield f'<rect class="page" width="{width}" height="{height}"/>'


def _box(placed: PlacedBox, tones: Mapping[str, str], drawn: set[str], diagram: Diagram) -> Iterator[str]:
    box, rect = placed.box, placed.rect
    name = quoteattr(box.state)
    yield (
        f'<g id={quoteattr(f"state-{box.state}")} class="{_classes("state", tones[box.state], box.mark)}"'
        f" data-state={name}>"
    )
    yield f'<rect class="box" {_place(rect)} rx="{number(ROUND)}"/>'
    yield f'<path class="strip" d="{_strip(rect, bool(placed.baselines))}"/>'
    yield _text("name", rect.x + PAD, rect.y + HEAD - 9, escape(box.state))
    if box.badge:
        yield _text("badge", rect.right - PAD, rect.y + HEAD - 10, escape(box.badge))
    baselines = list(placed.baselines)
    if box.intro:
        yield _text("intro", rect.x + PAD, baselines.pop(0), escape(box.intro))
    for entry, lines, y in zip(box.entries, placed.lists, baselines, strict=True):
        marked = f' class="{entry.mark}"' if entry.mark else ""
        yield f"<g{marked} data-event={quoteattr(entry.event)} data-rows={_ids(entry.rows)}>"
        yield f"<title>{escape(_reasons(entry, diagram))}</title>"
        if entry.label:
            yield _text("event", rect.x + PAD, y, escape(entry.label))
        for count, line in enumerate(lines):
            yield _text("list", placed.column, y + STEP * count, _steps(line, len(entry.steps) == 1, drawn))
        yield "</g>"
    yield "</g>"


def _steps(line: Iterable[Part], alone: bool, drawn: set[str]) -> str:
    parts = []
    for separator, step in line:
        kind = f"{step.kind} out" if alone and drawn.intersection(step.rows) else step.kind
        rows = f" data-rows={_ids(step.rows)}" if step.rows else ""
        between = f'<tspan class="else">{separator}</tspan>' if separator else ""
        tail = (
            f'<tspan class="{_classes("tail", step.mark)}"> {escape(step.tail)}</tspan>' if step.tail else ""
        )
        parts.append(
            f'{between}<tspan class="{_classes(kind, step.mark)}"{rows}>{escape(step.text)}</tspan>{tail}'
        )
    return "".join(parts)


def _arrow(placed: PlacedArrow, tones: Mapping[str, str], diagram: Diagram) -> Iterator[str]:
    arrow = placed.arrow
    usual = "usual" if arrow.usual else ""
    style = _classes("arrow", tones[arrow.source], "out" if arrow.way_out else "", usual, arrow.mark)
    yield (
        f'<g id={quoteattr(f"arrow-{arrow.source}-{arrow.dest}")} class="{style}"'
        f" data-source={quoteattr(arrow.source)} data-dest={quoteattr(arrow.dest)}"
        f" data-rows={_ids(arrow.rows)}>"
    )
    thick = f' style="stroke-width:{number(thickness(arrow.count))}"' if arrow.count else ""
    yield f'<path class="line" d="{placed.path.d}"{thick}/>'
    yield f'<path class="head" d="{placed.path.head}"/>'
    yield f'<rect class="halo" {_place(placed.label)} rx="3"/>'
    x = placed.label.center[0]
    for count, line in enumerate(_label(placed)):
        yield _text("label", x, placed.label.y + TEXT + 1 + (STEP - 1) * count, line)
    yield "</g>"


def _label(placed: PlacedArrow) -> Iterator[str]:
    """Return the lines of a label, each name with its mark."""
    marks = iter(placed.arrow.marks or [""] * len(placed.arrow.labels))
    for line in placed.lines:
        names = [(escape(name), mark) for name, mark in zip(line, marks)]  # noqa: B905 - the marks continue with the next line
        text = ", ".join(f'<tspan class="{mark}">{name}</tspan>' if mark else name for name, mark in names)
        yield text + ("," if line is not placed.lines[-1] else "")


def _panel(panel: Panel) -> Iterator[str]:
    yield '<g class="panel">'
    yield _text("heading", panel.rect.x, panel.rect.y + TITLE - 3, escape(panel.title))
    for count, (term, text, x) in enumerate(panel.lines, 1):
        y = panel.rect.y + TITLE + 4 + STEP * count
        if term:
            yield _text("event", panel.rect.x, y, escape(term))
        yield _text("prose", x, y, escape(text))
    yield "</g>"


def _reasons(entry: StateEntry, diagram: Diagram) -> str:
    """Return the tooltip of an event: its reason, and each row with its guard."""
    rows = (row for row in diagram.table.rows if row.id in entry.rows)
    return "\n".join([entry.why, *(f"{row.id}: {row.rung} if {row.guard.label}" for row in rows)])


def _strip(rect: Rect, has_lines: bool) -> str:
    """Return the path of a box's colored header, inside its border."""
    x, y, right, low = rect.x + 0.6, rect.y + 0.6, rect.right - 0.6, rect.y + HEAD
    r = ROUND - 0.6
    foot = f"V{number(low)} H{number(x)}"
    if not has_lines:
        foot = (
            f"V{number(low - r)} q0,{number(r)} {number(-r)},{number(r)} H{number(x + r)} q{number(-r)},0 "
            + f"{number(-r)},{number(-r)}"
        )
    return (
        f"M{number(x)},{number(y + r)} q0,{number(-r)} {number(r)},{number(-r)} "
        f"H{number(right - r)} q{number(r)},0 {number(r)},{number(r)} {foot} Z"
    )


def _place(rect: Rect) -> str:
    return (
        f'x="{number(rect.x)}" y="{number(rect.y)}" width="{number(rect.width)}"'
        f' height="{number(rect.height)}"'
    )


def _text(style: str, x: float, y: float, content: str) -> str:
    return f'<text class="{style}" x="{number(x)}" y="{number(y)}">{content}</text>'


def _classes(*names: str) -> str:
    return " ".join(filter(None, names))


def _ids(rows: Iterable[str]) -> str:
    return quoteattr(" ".join(rows))


# ----------------------------------------------------------------------------------------------------
# A picture as PNG, for slides, chats, and issue trackers without SVG support. Needs the extra ``png``.


ZOOM = 2.0
"""PNG pixels per SVG pixel: sharp on high-density screens."""
FONTS = "DejaVu Sans, Verdana, Arial"
_TEXT = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">'
    f'<text y="9" font-family="{FONTS}">M</text></svg>'
)
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n(.*?)\n\}\n</style>", re.DOTALL)


def as_png(svg: str, *, dark: bool = False) -> bytes:
    """Convert an SVG of this package to PNG, two pixels for each of its pixels; ``dark``: in its dark theme.
    Raises ``ConfigError`` if the extra or a system font is missing, or if the picture cannot be drawn."""
    try:
        engine = import_module("resvg_py")
    except ImportError:
        raise ConfigError("a PNG needs resvg-py", "png", install_command("png")) from None
    if engine.svg_to_bytes(_TEXT) == engine.svg_to_bytes(_TEXT, skip_system_fonts=True):
        raise ConfigError("the system has no font for a PNG", "png", f"one of {FONTS}, or --format svg")
    try:
        return bytes(engine.svg_to_bytes(_DARK.sub(r"\1\n</style>", svg) if dark else svg, zoom=ZOOM))
    except ValueError as error:
        raise ConfigError(f"this picture cannot be drawn ({error})", "png") from None
