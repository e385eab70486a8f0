"""Text that would enter the system prompt, looked over for what tries to take the agent over. Pure.

It finds the plain forms and no clever ones: it is a door that is shut, not a wall. What it finds costs the
whole text, so it is kept from finding what ordinary project files say: an authorised ``curl``, a chat
template in a code block, emoji, Thai, Arabic. (Why: decision 25.)"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache

_VARIABLE = r"\$(?:env:)?\{?\w*(?:key|token|secret|passw(?:or)?d|credential)\w*\}?"
_SENDER = r"\b(?:curl|wget|nc|ncat|netcat|invoke-webrequest|invoke-restmethod|iwr|irm)\b"
_PRIVATE_FILE = (
    r"(?:\.env\b|id_(?:rsa|ed25519|ecdsa)\b|\.aws/credentials|\.netrc\b|\.ssh/|\.git-credentials|/etc/shadow)"
)
_EARLIER = r"(?:previous|prior|earlier|preceding|foregoing|above|existing|original|system|developer)"
_ORDERS = r"(?:instructions?|prompts?|directives?|messages?|commands?|orders?)"

WORDS: tuple[tuple[str, str], ...] = (
    (
        "instruction override",
        rf"\b(?:ignore|disregard|forget|override|bypass)\s+(?:(?:all|any|the|your|of|every|those|these)\s+)*{_EARLIER}\s+{_ORDERS}"
        rf"|\b(?:ignore|disregard|forget)\s+(?:all\s+(?:of\s+)?(?:your|the)|all\s+{_EARLIER}|everything)\s+"
        rf"(?:{_ORDERS}|rules|guidelines|(?:above|before|you\s+(?:were|have\s+been|know)))"
        r"|\b(?:ignore|disregard|forget)\s+(?:your\s+(?:instructions|rules|guidelines|training)|(?:all\s+)?(?:previous|prior)\s+rules)"
        r"|\bsystem\s+(?:prompt\s+)?override\s*:|\bnew\s+system\s+(?:instructions|prompt)\s*:"
        r"|\bfrom\s+now\s+on,?\s+you\s+(?:are|will\s+(?:act|behave|be))\s+(?:as\s+)?(?:an?\s+)?(?:unrestricted|evil|unfiltered|dan\b)"
        r"|\byou\s+are\s+now\s+(?:dan\b|jailbroken|unrestricted|unfiltered|in\s+(?:developer|debug|god|jailbreak)\s+mode)"
        r"|\b(?:act|respond|behave)\s+as\s+(?:if|though)\s+you\s+(?:have|had)\s+no\s+(?:rules|restrictions|limits|guidelines)",
    ),
    (
        "concealment from the user",
        r"\b(?:do\s+not|don't|never)\s+(?:tell|inform|mention|reveal|disclose|report)\b[^.\n]{0,40}?\bth(?:is|ese)\b[^.\n]{0,20}?"
        r"\bto\s+(?:the\s+)?user\b"
        r"|\b(?:do\s+not|don't|never)\s+(?:tell|inform|let)\s+(?:the\s+)?user\s+(?:know\s+)?(?:about|of)\s+(?:this|these|it)\b"
        r"|\b(?:hide|conceal|keep)\s+(?:this|these|it)\s+(?:(?:a\s+)?secret\s+|hidden\s+)?from\s+(?:the\s+)?user\b",
    ),
    (
        "prompt disclosure",
        r"\b(?:reveal|print|output|repeat|leak|show|send)\s+(?:me\s+)?your\s+(?:\w+\s+){0,2}(?:system\s+prompt|hidden\s+instructions)",
    ),
    (
        "exfiltration of secrets",
        rf"{_SENDER}[^\n]{{0,400}}?{_VARIABLE}"
        rf"|\b(?:cat|base64|xxd|type|get-content)\b[^\n|]{{0,200}}{_PRIVATE_FILE}[^\n]{{0,100}}\|[^\n]{{0,100}}{_SENDER}"
        rf"|{_SENDER}[^\n]{{0,200}}(?:@|<\s*)\S{{0,100}}{_PRIVATE_FILE}"
        rf"|\b(?:env|printenv|export\s+-p)\b\s*\|[^\n]{{0,100}}{_SENDER}"
        r"|\b(?:send|upload|post|exfiltrate|forward|leak)\b[^.\n]{0,60}\b(?:credentials|api\s+keys?|passwords|private\s+keys?"
        r"|environment\s+variables|secrets)\b[^.\n]{0,60}https?://",
    ),
    ("a door left open", r">>\s*\S{0,100}authorized_keys"),
    (
        "hidden markup",
        r"<\w+[^>\n]{0,200}\bstyle\s*=\s*[\"'][^\"'\n]{0,200}(?:display\s*:\s*none|visibility\s*:\s*hidden)",
    ),
)
TAGS = (
    "role tags",
    r"<\|(?:im_start|im_end|im_sep|system|user|assistant|start_header_id|end_header_id|eot_id|endoftext|begin_of_text)\|>"
    r"|\[/?INST\]|<</?SYS>>|(?m:^[ \t]*</?(?:system|developer|assistant)>)",
)

_CODE = re.compile(r"(?ms)^[ \t]*(`{3,}|~{3,}).*?(?:^[ \t]*\1|\Z)|`[^`\n]+`")
_AUTHORISED = re.compile(
    r"(?i)(?:-H|--header)["
    r" =]*([\"'])(?:authorization|(?:x-)?api-?key|private-token|x-[\w-]*token)\s*:(?:(?!\1).)*\1"
    r"|(?<!\S)(?:-u|--user)[ =]+\S+"
)
_ZERO_WIDTH = re.compile("[\u180e\u200b\u2060-\u2064\ufeff]|(?<=[A-Za-z])[\u200c\u200d\u00ad]+(?=[A-Za-z])")
_INVISIBLE = re.compile(
    "[\u00ad\u180e\u200b-\u200f\u2060-\u2064\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_TAG_CHARACTERS = re.compile("[\U000e0000-\U000e007f]")
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f")
_NO_SPACES = re.compile("[\u0e00-\u109f\u1780-\u17ff]")
"""Scripts that mark where a line may break with a zero-width space."""


@lru_cache(maxsize=64)
def scan(text: str, *, strict: bool = False) -> tuple[str, ...]:
    """Why this text should not be trusted, each reason with its first line; empty when it may be.

    ``strict``, for text that has no business with either: code blocks and authorised requests count too. The
    reasons never quote the text. The last answers are remembered, because the same files are read at every
    turn."""
    words = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    found = [*_unicode(text), *_phrases(words if strict else _AUTHORISED.sub(" ", words))]
    outside_code = words if strict else _CODE.sub(lambda match: "\n" * match[0].count("\n"), words)
    if tag := _compiled(TAGS[1]).search(outside_code):
        found.append(_reason(TAGS[0], outside_code, tag.start()))
    return tuple(found)


def _phrases(text: str) -> Iterator[str]:
    for name, pattern in WORDS:
        if match := _compiled(pattern).search(text):
            yield _reason(name, text, match.start())


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled when first needed, because that takes milliseconds."""
    return re.compile(pattern, re.IGNORECASE)


def _unicode(text: str) -> Iterator[str]:
    if text.isascii():
        return
    text = _FLAG.sub("", text.removeprefix("\ufeff"))
    for match in _ZERO_WIDTH.finditer(text):
        around = text[max(0, match.start() - 1) : match.start()] + text[match.end() : match.end() + 1]
        if not (match[0] == "\u200b" and _NO_SPACES.search(around)):
            yield _reason("hidden unicode (zero width)", text, match.start())
            break
    for match in _BIDI.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 :].split("\n", 1)[0]
        if match[0] in "\u202d\u202e" or not _RIGHT_TO_LEFT.search(line):
            yield _reason("hidden unicode (text direction)", text, match.start())
            break
    if (tag := _TAG_CHARACTERS.search(text)) is not None:
        yield _reason("hidden unicode (tag characters)", text, tag.start())


def _reason(name: str, text: str, place: int) -> str:
    return f"{name} (line {text.count(chr(10), 0, place) + 1})"
