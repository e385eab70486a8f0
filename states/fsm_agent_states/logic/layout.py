"""Positions of the boxes and arrows in the pictures of our turn. They are fixed by role, so that two versions
can be compared box by box.

The way in and Compress are on the left, recovery from errors below them; the main loop BuildMessages,
CallLLM, ExecuteTools is on the right; the way out is at the bottom. Boxes are (x, y, least width); an arrow
names the sides it joins by absolute coordinates, a label its center."""

from __future__ import annotations

from fsm_agent.fsm.layout import Layout, way

_MAP: Layout = {
    "size": (1010, 452),
    "boxes": {
        "Prepare": (40, 40, 150),
        "BuildMessages": (320, 40, 400),
        "Compress": (40, 146, 172),
        "ClassifyError": (40, 262, 310),
        "CallLLM": (450, 238, 176),
        "ExecuteTools": (790, 142, 176),
        "EmptyRecovery": (790, 300, 176),
        "Finalize": (450, 376, 176),
    },
    "arrows": {
        ("Prepare", "BuildMessages"): way("right", 69, "left", 69, label=(250, 69)),
        ("BuildMessages", "BuildMessages"): way("top", 540, "top", 600, label=(664, 18), reach=24),
        ("BuildMessages", "Compress"): way("bottom", 388, "right", 160, [(388, 160)], (278, 160)),
        ("Compress", "BuildMessages"): way("right", 190, "bottom", 366, [(366, 190)], (284, 190)),
        ("Compress", "Compress"): way("top", 60, "top", 110, label=(85, 116), reach=16),
        ("BuildMessages", "ClassifyError"): way("bottom", 340, "top", 340, label=(320, 244)),
        ("ClassifyError", "BuildMessages"): way("right", 280, "bottom", 420, [(420, 280)], (424, 208)),
        ("ClassifyError", "Compress"): way("top", 110, "bottom", 110, label=(110, 234)),
        ("CallLLM", "ClassifyError"): way("left", 292, "right", 304, label=(396, 300)),
        ("BuildMessages", "CallLLM"): way("bottom", 580, "top", 580, label=(580, 196)),
        ("CallLLM", "BuildMessages"): way("top", 500, "bottom", 500, label=(500, 150)),
        ("CallLLM", "ExecuteTools"): way("right", 254, "bottom", 840, [(840, 254)], (840, 228)),
        ("ExecuteTools", "BuildMessages"): way("top", 830, "right", 80, [(830, 80)], (778, 80)),
        ("ExecuteTools", "ExecuteTools"): way("top", 885, "top", 935, label=(910, 108), reach=20),
        ("CallLLM", "EmptyRecovery"): way("right", 284, "left", 326, label=(706, 308)),
        ("EmptyRecovery", "BuildMessages"): way(
            "right", 330, "right", 56, [(992, 330), (992, 56)], (890, 56)
        ),
        ("CallLLM", "Finalize"): way("bottom", 540, "top", 540, label=(540, 336)),
        ("ClassifyError", "Finalize"): way("bottom", 156, "left", 388, [(156, 388)], (364, 388)),
        ("Compress", "Finalize"): way("left", 176, "left", 407, [(24, 176), (24, 407)], (220, 407)),
        ("Prepare", "Finalize"): way("left", 69, "left", 426, [(10, 69), (10, 426)], (92, 426)),
        ("BuildMessages", "Finalize"): way("bottom", 664, "right", 392, [(664, 392)], (664, 150)),
        ("ExecuteTools", "Finalize"): way("left", 172, "right", 408, [(748, 172), (748, 408)], (748, 370)),
        ("EmptyRecovery", "Finalize"): way("bottom", 878, "right", 424, [(878, 424)], (760, 424)),
    },
    "how_to_read": (0, 0, 0),
    "proved": (0, 0, 0),
}
"""The map of the debugger's page: its boxes have no lines, and every exit is an arrow."""

_SMALL: Layout = {
    "size": (830, 592),
    "boxes": {
        "Prepare": (36, 30, 164),
        "BuildMessages": (290, 30, 345),
        "Compress": (36, 190, 164),
        "ClassifyError": (36, 350, 190),
        "CallLLM": (455, 350, 150),
        "ExecuteTools": (645, 170, 157),
        "EmptyRecovery": (628, 430, 157),
        "Finalize": (430, 520, 210),
    },
    "arrows": {
        ("Prepare", "BuildMessages"): way("right", 60, "left", 60),
        ("BuildMessages", "BuildMessages"): way("top", 540, "top", 590, label=(636, 12), reach=22),
        ("BuildMessages", "Compress"): way("bottom", 310, "right", 206, [(310, 206)], (256, 202)),
        ("Compress", "BuildMessages"): way("right", 236, "bottom", 350, [(350, 236)], (276, 246), wrap=110),
        ("Compress", "Compress"): way("top", 80, "top", 130, label=(126, 142), reach=24),
        ("BuildMessages", "ClassifyError"): way("bottom", 390, "right", 364, [(390, 364)], (390, 180)),
        ("ClassifyError", "BuildMessages"): way(
            "right", 382, "bottom", 440, [(440, 382)], (440, 306), wrap=84
        ),
        ("ClassifyError", "Compress"): way("top", 118, "bottom", 118, label=(118, 300)),
        ("CallLLM", "ClassifyError"): way("left", 398, "right", 398, label=(330, 398)),
        ("BuildMessages", "CallLLM"): way("bottom", 570, "top", 570, label=(570, 156), wrap=80),
        ("CallLLM", "BuildMessages"): way("top", 490, "bottom", 490, label=(490, 228), wrap=80),
        ("CallLLM", "ExecuteTools"): way("right", 366, "bottom", 670, [(670, 366)], (670, 308)),
        ("ExecuteTools", "BuildMessages"): way("top", 680, "right", 76, [(680, 76)], (696, 122), wrap=116),
        ("ExecuteTools", "ExecuteTools"): way("bottom", 730, "bottom", 780, label=(744, 272), reach=30),
        ("CallLLM", "EmptyRecovery"): way("right", 388, "top", 740, [(740, 388)], (688, 388)),
        ("EmptyRecovery", "BuildMessages"): way(
            "right", 452, "right", 48, [(822, 452), (822, 48)], (736, 48), wrap=130
        ),
        ("CallLLM", "Finalize"): way("bottom", 530, "top", 530, label=(530, 464)),
        ("ClassifyError", "Finalize"): way("bottom", 118, "left", 533, [(118, 533)], (210, 533)),
        ("Compress", "Finalize"): way("left", 220, "left", 553, [(24, 220), (24, 553)], (300, 553)),
        ("Prepare", "Finalize"): way("left", 60, "left", 573, [(12, 60), (12, 573)], (130, 573)),
        ("BuildMessages", "Finalize"): way("bottom", 616, "top", 616, label=(616, 328)),
        ("ExecuteTools", "Finalize"): way("right", 200, "right", 562, [(812, 200), (812, 562)], (726, 562)),
        ("EmptyRecovery", "Finalize"): way("bottom", 690, "right", 538, [(690, 538)], (690, 516)),
    },
    "how_to_read": (0, 0, 0),
    "proved": (0, 0, 0),
}
"""The picture of README files."""

LAYOUT: Layout = {
    "size": (1600, 1086),
    "boxes": {
        "Prepare": (16, 24, 200),
        "BuildMessages": (450, 20, 700),
        "CallLLM": (724, 470, 414),
        "ClassifyError": (16, 470, 658),
        "Compress": (16, 208, 376),
        "ExecuteTools": (1098, 292, 460),
        "EmptyRecovery": (1044, 858, 514),
        "Finalize": (590, 874, 402),
    },
    "arrows": {
        ("Prepare", "BuildMessages"): way("right", 70, "left", 70),
        ("BuildMessages", "BuildMessages"): way("right", 84, "right", 118, reach=44),
        ("BuildMessages", "Compress"): way("left", 150, "top", 250, [(250, 150)], (352, 150)),
        ("BuildMessages", "ClassifyError"): way("bottom", 660, "top", 660, label=(660, 284)),
        ("BuildMessages", "CallLLM"): way("bottom", 1020, "top", 1020),
        ("CallLLM", "BuildMessages"): way("top", 830, "bottom", 830, wrap=90),
        ("CallLLM", "ExecuteTools"): way("right", 512, "bottom", 1190, [(1190, 512)], (1215, 490)),
        ("CallLLM", "EmptyRecovery"): way("right", 548, "top", 1168, [(1168, 548)]),
        ("CallLLM", "ClassifyError"): way("left", 746, "right", 746, label=(700, 732)),
        ("CallLLM", "Finalize"): way("bottom", 850, "top", 850),
        ("ClassifyError", "BuildMessages"): way("top", 586, "bottom", 586, label=(586, 392), wrap=130),
        ("ClassifyError", "Compress"): way("top", 150, "bottom", 150),
        ("Compress", "BuildMessages"): way("right", 350, "bottom", 524, [(524, 350)], (468, 300), wrap=90),
        ("Compress", "Compress"): way("top", 60, "top", 160, label=(110, 148), wrap=180, reach=40),
        ("ExecuteTools", "BuildMessages"): way("top", 1440, "right", 158, [(1440, 158)], (1300, 187)),
        ("ExecuteTools", "ExecuteTools"): way("bottom", 1400, "bottom", 1480, label=(1440, 492), reach=44),
        ("EmptyRecovery", "BuildMessages"): way(
            "right", 932, "right", 46, [(1580, 932), (1580, 46)], (1368, 46), wrap=300
        ),
    },
    "how_to_read": (1212, 548, 350),
    "proved": (16, 850, 556),
    "map": _MAP,
    "small": _SMALL,
    "says": {
        "Prepare": "reads the message",
        "BuildMessages": "builds a request that fits the window",
        "CallLLM": "asks the model",
        "ClassifyError": "decides what a failure needs",
        "Compress": "shortens history",
        "ExecuteTools": "runs the calls",
        "EmptyRecovery": "asks for an answer",
        "Finalize": "stores the result",
    },
    "usual": (
        ("Prepare", "BuildMessages"),
        ("BuildMessages", "CallLLM"),
        ("CallLLM", "ExecuteTools"),
        ("ExecuteTools", "BuildMessages"),
        ("CallLLM", "Finalize"),
    ),
    "ways_out": {"CallLLM": ("text", "summary")},
    "notes": (
        "A rung spends the counter of its name: retry spends retries.",
        "A reply closes the call block, a tool round ends all streaks, a fallback starts afresh.",
    ),
}
