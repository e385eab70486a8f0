"""Where the boxes and arrows of our turn stand in its picture. Fixed by role, so two versions compare box by box.

The way in and Compress are on the left, recovery from errors below them; the main loop BuildMessages, CallLLM,
ExecuteTools is on the right; the way out is at the bottom. Boxes are (x, y, least width); an arrow names the sides it
joins by absolute coordinates, a label its centre.
"""

from __future__ import annotations

from fsm_agent.fsm.layout import Layout

LAYOUT: Layout = {
    "size": (1600, 912),
    "boxes": {
        "Prepare": (16, 24, 200),
        "BuildMessages": (450, 20, 700),
        "CallLLM": (724, 400, 414),
        "ClassifyError": (16, 400, 658),
        "Compress": (16, 208, 376),
        "ExecuteTools": (1098, 232, 460),
        "EmptyRecovery": (1044, 742, 514),
        "Finalize": (590, 760, 402),
    },
    "arrows": {
        ("Prepare", "BuildMessages"): {"start": ("right", 70), "end": ("left", 70)},
        ("BuildMessages", "BuildMessages"): {"start": ("right", 84), "end": ("right", 118), "reach": 44},
        ("BuildMessages", "Compress"): {
            "start": ("left", 150),
            "via": [(250, 150)],
            "end": ("top", 250),
            "label": (352, 150),
        },
        ("BuildMessages", "ClassifyError"): {"start": ("bottom", 660), "end": ("top", 660), "label": (660, 240)},
        ("BuildMessages", "CallLLM"): {"start": ("bottom", 1020), "end": ("top", 1020)},
        ("CallLLM", "BuildMessages"): {"start": ("top", 830), "end": ("bottom", 830), "wrap": 90},
        ("CallLLM", "ExecuteTools"): {
            "start": ("right", 442),
            "via": [(1190, 442)],
            "end": ("bottom", 1190),
            "label": (1215, 420),
        },
        ("CallLLM", "EmptyRecovery"): {"start": ("right", 478), "via": [(1168, 478)], "end": ("top", 1168)},
        ("CallLLM", "ClassifyError"): {"start": ("left", 676), "end": ("right", 676), "label": (700, 662)},
        ("CallLLM", "Finalize"): {"start": ("bottom", 850), "end": ("top", 850)},
        ("ClassifyError", "BuildMessages"): {
            "start": ("top", 586),
            "end": ("bottom", 586),
            "label": (586, 330),
            "wrap": 130,
        },
        ("ClassifyError", "Compress"): {"start": ("top", 150), "end": ("bottom", 150)},
        ("Compress", "BuildMessages"): {
            "start": ("right", 290),
            "via": [(500, 290)],
            "end": ("bottom", 500),
            "label": (447, 246),
            "wrap": 90,
        },
        ("ExecuteTools", "BuildMessages"): {
            "start": ("top", 1440),
            "via": [(1440, 158)],
            "end": ("right", 158),
            "label": (1300, 187),
        },
        ("ExecuteTools", "ExecuteTools"): {
            "start": ("bottom", 1400),
            "end": ("bottom", 1480),
            "reach": 44,
            "label": (1440, 432),
        },
        ("EmptyRecovery", "BuildMessages"): {
            "start": ("right", 816),
            "via": [(1580, 816), (1580, 46)],
            "end": ("right", 46),
            "label": (1368, 46),
            "wrap": 300,
        },
    },
    "how_to_read": (1212, 478, 350),
    "proved": (16, 732, 556),
    "ways_out": {"CallLLM": ("text", "summary")},
    "notes": (
        "A rung spends the counter of its name: retry spends retries.",
        "A reply closes the call block, a tool round ends all streaks, a fallback starts afresh.",
    ),
}
