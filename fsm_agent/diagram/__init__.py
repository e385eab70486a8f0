"""Pictures and texts of a transition table, generated from the rows that run: Mermaid, Graphviz, SVG,
Markdown, JSON; and SCXML and XState for other engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsm_agent.diagram.graph_languages import as_dot, as_mermaid, lay_out
from fsm_agent.diagram.markdown import as_markdown
from fsm_agent.diagram.model import Diagram, diagram_of
from fsm_agent.diagram.scxml import as_scxml
from fsm_agent.diagram.statecharts import as_xstate
from fsm_agent.diagram.svg import as_svg
from fsm_agent.diagram.table_json import as_json
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.layout import Layout
from fsm_agent.fsm.table import Table

__all__ = ["ENGINES", "FORMATS", "Layout", "render", "written"]

FORMATS: Mapping[str, str] = {"mermaid": "mmd", "dot": "dot", "svg": "svg", "markdown": "md", "json": "json"}
"""Every format for readers, with its file extension."""
ENGINES = {"scxml": as_scxml, "xstate": as_xstate}
"""Formats for other engines; each also accepts values of limits."""


def render(
    table: Table, format: str, *, layout: Layout | None = None, proof_lines: Sequence[str] = ()
) -> str:
    """Render ``table`` in one of ``FORMATS`` or ``ENGINES``. The output is deterministic, with LF and a
    trailing newline.

    ``layout`` fixes the places of the SVG and determines the exits drawn as arrows; without it both are
    chosen automatically. ``proof_lines`` fill a panel of the SVG. Raises ``ConfigError`` for an unknown
    format."""
    return written(
        diagram_of(table, layout.get("ways_out") if layout else None), format, layout, proof_lines=proof_lines
    )


def written(
    diagram: Diagram,
    format: str,
    layout: Layout | None = None,
    engine: str = "own",
    *,
    proof_lines: Sequence[str] = (),
) -> str:
    """Render a diagram, possibly marked or partial, in one of ``FORMATS`` or ``ENGINES``. JSON, Markdown, and
    machines for other engines always show the whole table.

    ``engine`` "graphviz" lays out an SVG with Graphviz and needs the extra of that name. Raises
    ``ConfigError``."""
    match format:
        case "mermaid":
            return as_mermaid(diagram)
        case "dot":
            return as_dot(diagram)
        case "svg":
            return as_svg(diagram, layout, proof_lines) if engine == "own" else lay_out(as_dot(diagram))
        case "markdown":
            return as_markdown(diagram)
        case "json":
            return as_json(diagram)
        case _ if format in ENGINES:
            return ENGINES[format](diagram.table)
    raise ConfigError("unknown diagram format", format, ", ".join([*FORMATS, *ENGINES]))
