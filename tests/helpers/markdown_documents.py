"""Documents in Markdown, made by chance, of words that each occur once; and where a reader has to find them."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from random import Random

_DIGITS = {
    "Q": "abcdefghijkmnop", "Ж": "абвгдежзиклмноп", "漢": "一七万三上下不与丑且世丘丙业丛", "ש": "אבגדהוזחטיכלמנס",
    "ع": "بتثجحخدذرسشصضطظ", "É": "aeiou", "한": "가나다라마바사아자차카타파하거", "👍🏽": "😀😁😂😃😄😅😆😇😈😉😊😋😌😍😎",
    "👩\u200d🚀": "🌍🌎🌏🌐🌑🌒🌓🌔🌕🌖🌗🌘🌙🌚🌛", "❤\ufe0f": "abcdefghijkmnop", "न": "कखगघचछजझटठडढतथद",
}  # fmt: skip
"""How a word begins, and the signs that count it."""
_LANGUAGES = ("python", "json", "diff", "console", "sh", "html", "markdown", "")
_ASKED = (
    "text", "em", "strong", "code", "strike", "link", "image", "badge", "nameless", "auto", "html", "generic",
)  # fmt: skip
_RARE = ("break", "backslash", "br", "tab", "nbsp", "reference", "long", "rule", "entity", "newline")


@dataclass
class Document:
    """``places`` are read from top to bottom; within a place each lane is. ``whole`` words may not be broken."""

    text: str
    places: list[list[list[str]]] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


class Writer:
    """Writes a document."""

    def __init__(self, chance: Random) -> None:
        self._chance, self._counted = chance, 0
        self.document = Document("")

    def write(self) -> Document:
        parts = [self._block(0) for _ in range(self._chance.randint(1, 5))]
        self.document.text = "\n\n".join(parts) + self._chance.choice(("", "\n", "\n\n"))
        if self._chance.random() < 0.1:
            self.document.text = self.document.text.replace("\n", "\r\n")
        return self.document

    def _word(self, kind: str = "") -> str:
        kind = kind or self._chance.choice("QQQQQQ" + "".join(k for k in _DIGITS if len(k) == 1) + "É")
        if not kind.isascii() and self._chance.random() < 0.2:
            kind = self._chance.choice([*_DIGITS])
        signs, number, word = _DIGITS[kind], self._counted, ""
        self._counted += 1
        for _ in range(4):
            number, rest = divmod(number, len(signs))
            word = signs[rest] + ("\u0301" if kind == "É" else "") + word
        return unicodedata.normalize(self._chance.choice(("NFC", "NFD")), kind) + word

    def _found(self, lane: list[str], word: str, *, whole: bool = True) -> str:
        normal = unicodedata.normalize("NFC", word)
        lane.append(normal)
        if whole:
            self.document.whole.append(normal)
        return word

    def _plain(self, lane: list[str]) -> str:
        return self._found(lane, self._word())

    def _inline(self, lane: list[str], *, lines: bool = True) -> str:
        """Words with something in them."""
        kinds = (*_ASKED * 2, *_RARE) if lines else _ASKED
        return " ".join(
            self._piece(lane, self._chance.choice(kinds)) for _ in range(self._chance.randint(1, 7))
        )

    def _piece(self, lane: list[str], kind: str) -> str:
        plain, latin = self._plain, lambda: self._found(lane, self._word("Q"), whole=False)
        match kind:
            case "em" | "strong" | "strike" | "code":
                sign = {"em": "*", "strong": "**", "strike": "~~", "code": "`"}[kind]
                return f"{sign}{plain(lane)} {plain(lane)}{sign}"
            case "link":
                return f"[{plain(lane)} **{plain(lane)}**](https://example.com/{latin()})"
            case "image":
                return f"![{plain(lane)} *{plain(lane)}*]({latin()}.png)"
            case "badge":
                return f"[![{plain(lane)}]({latin()}.svg)](https://example.com/{latin()} '{plain(lane)}')"
            case "nameless":
                return f"![]({latin()}.png)"
            case "auto":
                return f"<https://example.com/{latin()}>"
            case "html":
                return f"<b>{plain(lane)}</b> <{self._found(lane, self._word('Q'))} x='1'>"
            case "generic":
                return f"List<{self._found(lane, self._word('Q'))}>"
            case "break" | "backslash" | "br" | "tab" | "nbsp" | "newline":
                between = {"break": "  \n", "backslash": "\\\n", "br": "<br/>", "tab": "\t", "nbsp": "&nbsp;"}
                return plain(lane) + between.get(kind, "\n") + plain(lane)
            case "reference":
                return f"[{plain(lane)}][{plain(lane)}]"
            case "long":
                return self._found(lane, self._word("Q") + "x" * self._chance.randint(40, 260), whole=False)
            case "rule":
                return f"2 * {plain(lane)} * 3"
            case "entity":
                return f"&lt;{plain(lane)}&gt; \x1b[2J \u202e \x07"
            case _:
                return f"{plain(lane)} {plain(lane)} {plain(lane)}"

    # Blocks

    def _block(self, depth: int) -> str:
        kinds = ["paragraph"] * 3 + [
            "heading", "underlined", "fence", "indented", "table", "hr", "html", "definition",
        ]  # fmt: skip
        if depth < 3:
            kinds += ["list", "numbers", "quote"] * 2
        kind = self._chance.choice(kinds)
        if kind in ("list", "numbers", "quote"):
            return self._nested(kind, depth)
        if kind == "table":
            return self._table()
        lane: list[str] = []
        self.document.places.append([lane])
        match kind:
            case "heading":
                return "#" * self._chance.randint(1, 6) + " " + self._inline(lane, lines=False)
            case "underlined":
                return self._inline(lane, lines=False) + "\n" + self._chance.choice("=-") * 5
            case "fence":
                return self._fence(lane)
            case "indented":
                return "\n".join(f"    {self._plain(lane)}  {self._plain(lane)}" for _ in range(3))
            case "hr":
                return "* * *"
            case "html":
                return f"<div id='{self._plain(lane)}'>\n{self._plain(lane)} *{self._plain(lane)}*\n</div>"
            case "definition":
                latin = self._word("Q"), self._word("Q")
                for word in latin:
                    self._found(lane, word, whole=False)
                return f"[{latin[0]}]: https://example.com/{latin[1]}"
        return self._inline(lane)

    def _fence(self, lane: list[str]) -> str:
        language = self._chance.choice(_LANGUAGES)
        info = (
            f" title={self._found(lane, self._word('Q'))}" if language and self._chance.random() < 0.2 else ""
        )
        rows = [
            " " * self._chance.randint(0, 4)
            + self._chance.choice(("", "\t", "# ", "+ ", "$ ", '"'))
            + " ".join(self._plain(lane) for _ in range(self._chance.randint(1, 9)))
            for _ in range(self._chance.randint(1, 5))
        ]
        rows.insert(self._chance.randint(0, len(rows)), "")
        sign = self._chance.choice(("```", "~~~~"))
        return "\n".join([f"{sign}{language}{info}", *rows, sign])

    def _table(self) -> str:
        columns = self._chance.randint(1, 9)
        heads: list[list[str]] = [[] for _ in range(columns)]
        first = [self._found(lane, self._word()) for lane in heads]
        self.document.repeated += [word for lane in heads for word in lane]
        lines = [
            f"| {' | '.join(first)} |",
            "|" + "|".join([":-:", "---", "--:"][n % 3] for n in range(columns)) + "|",
        ]
        self.document.places.append(heads)
        for number in range(self._chance.randint(0, 4)):
            lanes: list[list[str]] = [[] for _ in range(columns + (self._chance.random() < 0.2))]
            kinds = ("text", "code", "link", "image", "strong", "br", "generic", "long")
            cells = [
                self._piece(lane, self._chance.choice(kinds[: 6 + self._chance.randint(0, 2)]))
                for lane in lanes
            ]
            lines.append(f"| {' | '.join(cells)} |")
            if number:
                self.document.places.append(lanes)
            else:  # a heading may share the row of its first cell
                self.document.places[-1] += lanes
        return "\n".join(lines)

    def _nested(self, kind: str, depth: int) -> str:
        if kind == "quote":
            inner = "\n\n".join(self._block(depth + 1) for _ in range(self._chance.randint(1, 2)))
            return "\n".join(f"> {line}".rstrip(" ") for line in inner.split("\n"))
        items = []
        for number in range(self._chance.randint(1, 3)):
            mark = "- " if kind == "list" else f"{number + 7}. "
            lane: list[str] = []
            self.document.places.append([lane])
            parts = [self._inline(lane, lines=False)]
            parts += [self._block(depth + 1) for _ in range(self._chance.random() < 0.5)]
            lines = "\n\n".join(parts).split("\n")
            items.append(
                "\n".join((mark if not n else " " * len(mark)) + line for n, line in enumerate(lines))
            )
        return "\n".join(items)


def document(seed: int) -> Document:
    return Writer(Random(seed)).write()
