"""axe-core in the page: what it finds against the rules for people who use no mouse, or hear the page."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
ASKED = """async (rules) => {
    const found = await axe.run(document, { runOnly: { type: "tag", values: rules }, resultTypes: ["violations"] });
    return found.violations.map((one) => `${one.id}: ${one.help}: ` + one.nodes.map((node) => node.target.join(" ") + " " + (node.any[0]?.message || "")).slice(0, 4).join(" | "));
}"""


@cache
def script() -> str:
    """Return axe-core, as the package ships it."""
    return (files("axe_core_python") / "axe.min.js").read_text()


def violations(page: Any) -> list[str]:
    """Return what is wrong with the page as it is now, one line a rule."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(script())
    found: list[str] = page.evaluate(ASKED, RULES)
    return found
