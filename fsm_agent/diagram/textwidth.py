"""How wide a text is, without a font: an estimate that errs on the wide side.

Advance widths in 1/1000 em of DejaVu Sans, which is about as wide as Verdana and wider than Helvetica and
Arial, so a text that fits here fits with every font of the family list of the SVG."""

from __future__ import annotations

from collections.abc import Sequence

SAFETY = 1.03
OTHER = 1000  # a letter outside ASCII: as wide as high
KNOWN = {"›": 412, "×": 838, "−": 838, "·": 380, "…": 1000, "⇥": 1000, "→": 1000}

# fmt: off
REGULAR = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636,
    636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295,
    295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838,
    500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521,
    392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
)
BOLD = (
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696, 696,
    696, 696, 696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821, 837, 372,
    372, 775, 637, 995, 837, 850, 733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838,
    500, 500, 675, 716, 593, 716, 678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595,
    478, 712, 652, 924, 645, 652, 582, 712, 365, 712, 838,
)
# fmt: on


def text_width(text: str, size: float = 13, *, bold: bool = False) -> float:
    """Estimated width in pixels of ``text`` at a font size of ``size`` pixels."""
    widths = BOLD if bold else REGULAR
    total = sum(widths[ord(c) - 32] if " " <= c <= "~" else KNOWN.get(c, OTHER) for c in text)
    return total / 1000 * size * SAFETY


def wrapped(text: str, width: float, size: float = 13) -> list[str]:
    """``text`` broken at spaces into lines of at most ``width`` pixels; a longer word keeps a line of its
    own."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def joined(names: Sequence[str], width: float, size: float = 13) -> tuple[str, ...]:
    """``names`` with commas between them, broken between names into lines of at most ``width`` pixels."""
    lines = grouped(names, width, size)
    return tuple(", ".join(line) + ("," if line is not lines[-1] else "") for line in lines)


def grouped(names: Sequence[str], width: float, size: float = 13) -> tuple[tuple[str, ...], ...]:
    """The names of each line of ``joined``."""
    lines: list[list[str]] = []
    for number, name in enumerate(names, 1):
        comma = "," if number < len(names) else ""
        if lines and text_width(", ".join([*lines[-1], name]) + comma, size) <= width:
            lines[-1].append(name)
        else:
            lines.append([name])
    return tuple(map(tuple, lines))
