"""Taking the simplest disguises off a shell command: variables, escapes, substitutions, encodings. Pure.

What cannot be known from the text stays as it is written. Where the shell would keep two words apart and this
does not, the result only looks more dangerous than it is."""

from __future__ import annotations

import base64
import binascii
import codecs
import re
import shlex
from collections.abc import Mapping, Sequence

MAX_TEXT = 40_000
"""Characters; an expansion that grows beyond is left out."""
MAX_WORDS = 64
"""Words that one brace expression may become."""

_NAME = r"[A-Za-z_]\w*"
_VALUE = r"(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^\s;&|()<>'\"]+)+"
_ASSIGNED = re.compile(rf"(?:(?<=[\s;&|({{])|^)({_NAME})\+?=({_VALUE})?")
_LOOP = re.compile(rf"\bfor\s+({_NAME})\s+in\s+([^;\n]*)")
_UNKNOWN = re.compile(
    rf"\b(?:read|mapfile|readarray|getopts|select|printf\s+-v)\b[^;&|\n]*|\bfor\s+{_NAME}\s*\(\("
)
_SOURCED = re.compile(r"(?:^|[;&|\s])(?:source|\.)\s")
_USED = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(?:(:?[-=])([^{{}}]*)|:(\d+)(?::(\d+))?)?\}})")
_NOTHING = re.compile(r"\$(?:[@*]|\{[@*]\})")
_ANSI_C = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_LITERAL_OUTPUT = re.compile(r"\$\(\s*((?:echo|printf)\s[^()`]*?)\)|`\s*((?:echo|printf)\s[^()`]*?)`")
_BRACES = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_KEPT = frozenset(("HOME", "PWD", "OLDPWD", "IFS"))


def undisguised(text: str, environ: Mapping[str, str]) -> str:
    """The command with everything replaced that is certain: variables by their values, ``$'…'`` by what it
    says, the output of ``$(echo …)`` by its words. A variable that is nowhere set is empty, as it is for the
    shell."""
    text = _ANSI_C.sub(lambda match: shlex.quote(_escaped(match[1])), text)
    text = re.sub(r"\$\{IFS[^}]*\}|\$IFS\b", " ", text)
    text = re.sub(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`", "$PWD", text)
    text = _with_output(_NOTHING.sub("", text))
    values = _values(text)
    unset = None if _SOURCED.search(text) else ""
    changed = _substituted(text, values, environ, unset)
    return text if changed is None else _with_output(changed)


def spelled_out(word: str) -> list[str]:
    """The words that the shell makes of ``{a,b}``."""
    words = [word]
    while (match := _BRACES.search(words[0])) is not None and len(words) < MAX_WORDS:
        parts = match[1].split(",")
        words = [
            one[: found.start()] + part + one[found.end() :]
            for one in words
            if (found := _BRACES.search(one))
            for part in parts
        ]
    return words


def piped(stages: Sequence[Sequence[str]]) -> str | None:
    """What these commands, each the input of the next, write; ``None`` when that is not in the words
    themselves."""
    text: str | None = None
    for words in stages:
        text = _written(list(words), text)
    return text


def _with_output(text: str) -> str:
    def words_of(match: re.Match[str]) -> str:
        try:
            stages = [shlex.split(stage) for stage in (match[1] or match[2]).split("|")]
        except ValueError:
            return match[0]
        said = piped(stages) if all(stages) else None
        return match[0] if said is None else said.strip()

    return _LITERAL_OUTPUT.sub(words_of, text)


def _values(text: str) -> dict[str, str | None]:
    """Of each variable that the command sets; ``None`` for one whose value cannot be known."""
    values: dict[str, str | None] = {}
    for match in _UNKNOWN.finditer(text):
        values.update(dict.fromkeys(re.findall(_NAME, match[0])))
    for match in _LOOP.finditer(text):
        values[match[1]] = " ".join(_unquoted(match[2]).split())
    for match in _ASSIGNED.finditer(text):
        name, value = match[1], _unquoted(match[2] or "")
        known = _substituted(value, values, {}, None)
        if known is None:
            values[name] = None
            continue
        before = values.get(name)
        joined = f"{before}{known}" if "+=" in match[0].split("'")[0].split('"')[0] and before else known
        values[name] = None if "$(" in joined or "`" in joined or len(joined) > MAX_TEXT else joined
    return values


def _substituted(
    text: str, values: Mapping[str, str | None], environ: Mapping[str, str], unset: str | None
) -> str | None:
    """The text with the variables' values; ``None`` when it would become too long, as ``a=$a$a`` often enough
    does."""
    parts, size, at = [], 0, 0
    for match in _USED.finditer(text):
        value = _value(match, values, environ, unset)
        parts += [text[at : match.start()], value]
        size += len(value)
        at = match.end()
        if size > MAX_TEXT:
            return None
    return "".join([*parts, text[at:]])


def _value(
    match: re.Match[str], values: Mapping[str, str | None], environ: Mapping[str, str], unset: str | None
) -> str:
    name = match[1] or match[2]
    if name in _KEPT:
        return match[0]
    value = values[name] if name in values else environ.get(name, unset)
    if match[3] and not value:
        return match[4]
    if value is None:
        return match[0]
    if match[5]:
        start = int(match[5])
        return value[start : start + int(match[6])] if match[6] else value[start:]
    return value


def _unquoted(value: str) -> str:
    return re.sub(
        r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"",
        lambda match: match[1] if match[1] is not None else match[2] or "",
        value,
    )


def _written(words: list[str], given: str | None) -> str | None:
    """What one command writes for this input."""
    if "<<<" in words[:-1]:
        at = words.index("<<<")
        words, given = words[:at], words[at + 1]
    name, rest = (words[0].rpartition("/")[2], words[1:]) if words else ("", [])
    if name in ("echo", "printf"):
        options = "".join(word for word in rest[:1] if re.fullmatch(r"-[neE]+", word))
        text = " ".join(rest[bool(options) :])
        return (
            _escaped(text.replace("%s", "").replace("%b", "")) if name == "printf" or "e" in options else text
        )
    if given is None:
        return None
    if name in ("base64", "base32", "basenc", "openssl", "xxd") and any(
        re.fullmatch(r"-\w*[dDr]\w*|--decode", word) for word in rest
    ):
        return _decoded(given, "hex" if name == "xxd" else name)
    if name == "rev":
        return "\n".join(line[::-1] for line in given.splitlines())
    if name == "tr":
        return _translated(given, rest)
    return given if name in ("cat", "tee", "head", "tail", "sort", "uniq", "nohup") else None


def _decoded(text: str, how: str) -> str | None:
    packed = "".join(text.split()).encode("ascii", "ignore")
    try:
        if how == "hex":
            data = bytes.fromhex(packed.decode())
        elif how == "base32":
            data = base64.b32decode(packed + b"=" * (-len(packed) % 8))
        else:
            data = base64.b64decode(packed + b"=" * (-len(packed) % 4))
    except (binascii.Error, ValueError):
        return None
    return data.decode("utf-8", "replace")


def _translated(text: str, operands: Sequence[str]) -> str | None:
    if len(operands) != 2:
        return None
    old, new = (
        re.sub(r"(\w)-(\w)", lambda m: "".join(map(chr, range(ord(m[1]), ord(m[2]) + 1))), part)
        for part in operands
    )
    if not old or not new:
        return None
    return text.translate(str.maketrans(old, new.ljust(len(old), new[-1])[: len(old)]))


def _escaped(text: str) -> str:
    text = re.sub(r"\\0?([0-7]{1,3})", lambda match: chr(int(match[1], 8) & 0xFF), text)
    try:
        return codecs.decode(
            re.sub(r"\\(?![abefnrtvx\\'\"uU])", r"\\\\", text).replace("\\e", "\x1b"), "unicode_escape"
        )
    except (UnicodeDecodeError, ValueError):
        return text
