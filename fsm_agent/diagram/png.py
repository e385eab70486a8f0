"""A picture as PNG, for places that take no SVG: slides, chats, issue trackers. Needs the extra ``png``."""

from __future__ import annotations

import re
from importlib import import_module

from fsm_agent.errors import ConfigError
from fsm_agent.support.installation import install_command

ZOOM = 2.0
"""Pixels of the PNG for each of the SVG: sharp on screens of high density."""
FONTS = "DejaVu Sans, Verdana, Arial"
_TEXT = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">'
    f'<text y="9" font-family="{FONTS}">M</text></svg>'
)
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n(.*?)\n\}\n</style>", re.DOTALL)


def as_png(svg: str, *, dark: bool = False) -> bytes:
    """The PNG of an SVG that this package has written, two pixels for each of its pixels; ``dark``: in its
    dark theme. Raises ``ConfigError`` when the extra or any font of the system is missing, or when the
    picture cannot be drawn."""
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
