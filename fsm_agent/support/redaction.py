"""Keeps secrets out of everything that is shown, logged or stored, and out of child environments."""

from __future__ import annotations

import functools
import json
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

from fsm_agent.support.texts import ByteMatch, decode, encode, search

# Shapes of secrets, one per row, each with an example and an ordinary text that stays unchanged. Every
# expression begins with fixed text, bounds its repetitions or ends them at a character that they cannot
# contain, and has no look-around: its time is linear in the text.


MASK = "***"


@dataclass(frozen=True)
class SecretShape:
    """``sign``: in lower case; every text with this shape contains it, or one of several. ``expression``:
    its group ``kept`` stays, the rest of the match is the secret. ``example``: a text with its secret in
    ``⟨⟩``. ``ordinary``: a text that stays. ``mistakes``: known false positives."""

    name: str
    sign: str | tuple[str, ...]
    expression: str
    example: str
    ordinary: str
    mistakes: str = ""

    @cached_property
    def signs(self) -> tuple[str, ...]:
        """Return the signs; a text without any of them is not searched."""
        return (self.sign,) if isinstance(self.sign, str) else self.sign

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, compiled on first use; ``.`` also matches a newline."""
        return re.compile(self.expression, re.DOTALL)


SECRET_SHAPES: tuple[SecretShape, ...] = (
    SecretShape(
        "PGP private key", "-----begin pgp private",
        r"(?P<kept>-----BEGIN PGP PRIVATE KEY BLOCK-----)(?:[^-]|-{1,4}[^-])+(?:-----END PGP PRIVATE KEY BLOCK-----)?",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----⟨\nVersion: GnuPG-2\n\nlQOYBF+x\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----⟩",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQENBF+x\n-----END PGP PUBLIC KEY BLOCK-----",
    ),
    SecretShape(
        "netrc", "password",
        r"(?P<kept>\b(?:machine\s{1,99}\S{1,255}|default)\s{1,99}"
        r"(?:(?:login|account)\s{1,99}\S{1,255}\s{1,99}){0,2}password\s{1,99})\S+",
        "machine example.org\n  login me\n  password ⟨hunter2⟩", "the machine asks for login and password again",
        "'machine learning password reset': any word between the two",
    ),
    SecretShape(
        "curl -u", "curl",
        r"(?P<kept>\bcurl\b[^\n|;&]{0,200}?\s(?:-[A-Za-z]{0,8}u\s{0,9}|--user[ =])[\"']?[^\s:\"']{1,255}:)[^\s\"']+",
        "curl -sSu 'me:⟨hunter2⟩' https://example.org", "docker run -u 1000:1000 curl --version",
    ),
    SecretShape(
        "Docker auth", "auth",
        r"(?P<kept>[\"']auth\\{0,4}[\"']\s{0,9}:\s{0,9}\\{0,4}[\"'])[a-z+/]{0,200}[A-Z0-9][A-Za-z0-9+/]{8,}={0,2}",
        '{"auths": {"registry.example.org": {"auth": "⟨bWU6aHVudGVyMg==⟩"}}}', '{"auth": "authenticated", "n": 1}',
    ),
    SecretShape(
        "Azure keys", "sharedaccess", r"(?P<kept>\b(?:SharedAccessKey|SharedAccessSignature)=)[^;\s\"']{8,}",
        "Endpoint=sb://x/;SharedAccessKey=⟨YWJjZGVmZ2hpag==⟩;EntityPath=p", "SharedAccessKeyName=RootManageSharedAccessKey",
    ),
    SecretShape(
        "Azure storage", "accountkey", r"(?P<kept>\bAccountKey=)[^;\s\"']{8,}",
        "AccountName=me;AccountKey=⟨YWJjZGVmZ2hpag==⟩;EndpointSuffix=core", "AccountKey = find(account)",
    ),
    SecretShape(
        "Telegram", ":aa", r"(?P<kept>\b[0-9]{8,10}:AA)[A-Za-z0-9_-]{30,}",
        "bot 123456789:AA⟨Habcdefghijklmnopqrstuvwxyz0123456⟩", "at 12345678:AAbb there is nothing",
    ),
    SecretShape(
        "Discord", ".",
        r"(?P<kept>\b[MNO])[A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}",
        "M⟨TAxMjM0NTY3ODkwMTIzNDU2.Gabc12.abcdefghijklmnopqrstuvwxyz012345⟩",
        "NetworkConnectionManagerBase.create.withAllOptionsThatThereAre()",
    ),
    SecretShape(
        "Discord webhook", "/api/webhooks/", r"(?P<kept>/api/webhooks/[0-9]{5,25}/)[\w-]{20,}",
        "https://discord.com/api/webhooks/1234567890/⟨abcdefghijklmnopqrstuvwxyz⟩", "see /api/webhooks/12345/history",
    ),
    SecretShape(
        "Twilio", ("sk", "ac"), r"(?P<kept>\b(?:SK|AC))[0-9a-f]{32}\b",
        "SK⟨0123456789abcdef0123456789abcdef⟩", "sha 0123456789abcdef0123456789abcdef01234567",
    ),
    SecretShape(
        "age", "age-secret-key-1", r"(?P<kept>AGE-SECRET-KEY-1)[0-9A-Z]{20,}",
        "AGE-SECRET-KEY-1⟨QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L⟩", "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aq",
    ),
    SecretShape(
        "Vault", "hv", r"(?P<kept>\bhv[sbr]\.)[\w-]{20,}",
        "VAULT=hvs.⟨CAESIAbcdefghijklmnopqrst⟩", "hvs.short and hvac.Client()",
    ),
    SecretShape(
        "a password with commas", "passw",
        r"(?P<kept>\bpassw(?:or)?d=)[^\s\"'&;(),=]{1,64},[^\s\"'&;(),]{1,255}",
        "user=me password=⟨abc,def⟩ host=db", "connect(password=words, host=db)",
        "'f(password=pw,user=name)': arguments without a blank between them",
    ),
    SecretShape(
        "a JSON value with quotes in it", ("pass", "secret", "key", "token"),
        r"(?P<kept>\"(?:[a-zA-Z_-]{0,40}(?:password|passphrase|secret|Secret|Password|api_?key|apiKey|access_?token"
        r"|accessToken|refresh_?token|auth_?token))\"\s{0,9}:\s{0,9}\")(?:[^\"\\\r\n]|\\.){6,}",
        r'{"password": "⟨ab\"cd\\ef⟩", "n": 1}', '{"password": "", "passwords": ["a"], "secret": 1}',
    ),
    SecretShape(
        "mysql -p", "-p",
        r"(?P<kept>\b(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump)\b[^\n|;&]{0,200}?\s-p)[^\s\"'-][^\s\"']{2,}",
        "mysqldump -u root -p⟨hunter2⟩ db", "mysql -u root -p shop -P 3306",
    ),
    SecretShape(
        "sshpass -p", "sshpass", r"(?P<kept>\bsshpass\s{1,9}-p\s{0,9}[\"']?)[^\s\"']+",
        "sshpass -p '⟨hunter2⟩' ssh me@host", "sshpass -f file ssh me@host",
    ),
)  # fmt: skip


def without_shapes(text: str) -> str:
    """Return ``text`` with the secret of every shape masked."""
    lower = text.lower()
    for shape in SECRET_SHAPES:
        if any(sign in lower for sign in shape.signs):
            text = shape.compiled.sub(rf"\g<kept>{MASK}", text)
    return text


_SHORTEST = 6
"""Minimum characters; a shorter "secret" is a placeholder like "none", and masking it would garble ordinary
words."""

_IS = r"""\\*["']?\s*(?:[:=]|=>|%3[AaDd])\s*\\*["']?"""
"""Between a name and its value: in a header, in JSON, in nested JSON, in an assignment, in an address."""
_SHAPES = "|".join(
    (
        r"(?P<pem>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)",
        rf"(?P<cookie>\b(?:set-)?cookie{_IS})[^\"'\\\r\n=]{{0,200}}=[^\"'\\\r\n]{{4,}}",  # name=value; …
        r"\b(?P<scheme>bearer)\s+[\w.~+/=-]{6,}",
        r"\b(?P<basic>basic)\s+[a-z_+/-]*(?:\d|=|(?-i:[a-z][A-Z]))[\w+/=-]*",  # user and password in Base64
        rf"(?P<auth>\bauthorization{_IS}(?:token|apikey|digest)\s+)[^\s\"'\\,;&]{{6,}}",
        r"\b(?:sk|pk|rk)(?:-|_live_|_test_)[\w-]{6,}",  # OpenAI, Anthropic, Stripe, …
        r"\b(?:gsk|xai|hf|gh[oprsu]|github_pat|glpat|xox[a-z]|xapp|dop_v1|shpat|nvapi|pplx)[_-][\w-]{8,}",
        r"\b(?:npm_[a-z0-9]{30,}|pypi-[\w-]{16,}|SG\.[\w-]{10,}\.[\w-]{10,}|ya29\.[\w-]{10,}|AIza[\w-]{10,})",
        r"(?-i:\b(?:AKIA|ASIA)[A-Z0-9]{12,})",  # AWS
        r"(?P<hook>hooks\.slack\.com/services/)[\w/]+",
        r"(?P<before>^|[^\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]+",  # JSON web tokens
        r"(?P<name>(?:(?:api|access|secret|private|signing|encryption|auth)[_-]?(?:access[_-]?)?key(?:[_-]?id)?"
        r"|(?:access|auth|refresh|id|session|bearer|api)[_-]?token|client[_-]?secret|secret|passw(?:or)?d"
        rf"|passphrase){_IS})-{{0,4}}[^-\s\"'\\,;&][^\s\"'\\,;&]{{5,}}",
        r"(?P<flag>--(?:password|passwd|api-?key|token|secret)\s+[\"']?)[^\s\"'-][^\s\"']{5,}",
        r"(?P<env>(?-i:\b[A-Z][A-Z0-9_]*_(?:TOKEN|PASS|PWD|PAT|CREDENTIALS?))\s*=\s*[\"']?)[^\s\"']{6,}",
        rf"(?P<soft>(?:\btoken|[_-]token|signature|[?&](?:sig|key|code)|session_?id){_IS})"
        r"[a-z_.~+/%-]*\d[\w.~+/=%-]*",
        r"(?P<site>://[^\s:/@\"']+:)[^\s/\"']+@",  # https://user:password@host
    )
)
_SPANS = re.sub(r"\(\?P<\w+>", "(?:", _SHAPES)
"""The shapes without group names: finding a match is much faster than finding its parts."""
_HEAD = 1_000
"""Bytes of a shape that show its kind."""
_PRIVATE_KEY = re.compile(rb"(?:(?!-----)[^\"']){1,20000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?")
"""The rest of a private key after its header line; the end may be missing."""
_SHORTEST_OF = {b"basic": 6, b"soft": 8}
"""Bytes of a value below which it is an ordinary word."""
MOST = 1_000
"""Maximum secrets to mask in one text; a text with more was crafted, and its rest is omitted."""
_SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?key|apikey|access[_-]?token|auth[_-]?token|secret|password|authorization)$",
    re.IGNORECASE,
)
_KEYS = ("_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
"""Suffixes of the names of variables that hold keys."""
_SCHEME = re.compile(r"^(?:bearer|basic|token|digest|apikey|negotiate)(?:\s+|$)", re.IGNORECASE)
"""The scheme before a key in a header. It is not a secret: masking it would hide that a key follows."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^${}]*))?\}")
_KEPT = (b"scheme", b"basic")
"""Groups followed by a blank; every other one is kept unchanged."""


KEYS: set[str] = set()
"""Keys, passwords and headers that this process uses, from ``keep_secret``."""


class Exact(str):
    """A text that must reach a person unchanged, such as an approval question: ``mask_json`` skips it."""

    __slots__ = ()


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without anything that looks like a key, and without these secrets and those of
    ``KEYS`` in any form, including URL-encoded and JSON-escaped.

    The first characters that identify the kind of a key are kept: ``sk-***``."""
    for secret in _forms_to_mask(frozenset((*secrets, *tuple(KEYS)))):
        text = text.replace(secret, MASK)
    text = without_shapes(text)
    data = encode(text)
    return text if search(_SPANS, data) is None else decode(b"".join(_without_shapes(data)))


def keep_secret(values: Iterable[str]) -> None:
    """Mask these values from now on in all output of this process. Values shorter than ``_SHORTEST`` and
    names of existing files are not secrets."""
    KEYS.update(one for one in values if len(one) >= _SHORTEST and not os.path.exists(one))


def secrets_among(
    named: Mapping[str, str], environment: Mapping[str, str], *, every: bool = False
) -> Iterator[str]:
    """Return the secrets among variables or headers, in which ``${VAR}`` refers to a variable: those whose
    name says so, or ``every`` one."""
    for name, value in named.items():
        if every or name.upper().endswith(_KEYS) or _SECRET_NAME.search(name):
            whole = _VARIABLE.sub(lambda found: environment.get(found[1], found[2] or ""), str(value))
            yield _SCHEME.sub("", whole.strip())


def format_traceback(error: BaseException) -> str:
    """Format an exception's traceback without anything that looks like a key."""
    return mask("".join(traceback.format_exception(error)).rstrip())


def mask_json(value: Any, secrets: Sequence[str] = ()) -> Any:
    """Mask JSON values: secrets by their shape in any text, by their name in an object, and these
    ``secrets``. ``Exact`` texts stay."""
    if _is_plain(value):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {
            key: MASK if one and _is_plain(one) and _SECRET_NAME.search(str(key)) else mask_json(one, secrets)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask_json(one, secrets) for one in value]
    return value


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Exact)


def environment_keys(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables that hold keys, and those in lists of headers (``OTEL_…_HEADERS``)."""
    keys = [value for name, value in environment.items() if value and name.upper().endswith(_KEYS)]
    lists = (value for name, value in environment.items() if name.upper().endswith("_HEADERS"))
    return keys + [pair.partition("=")[2].strip() for value in lists for pair in value.split(",")]


@functools.lru_cache(maxsize=64)
def _forms_to_mask(secrets: frozenset[str]) -> tuple[str, ...]:
    """Return all forms to mask, the longest first."""
    return tuple(sorted({form for one in secrets for form in _forms(one)}, key=lambda one: (-len(one), one)))


def _forms(secret: str) -> Iterator[str]:
    if len(secret) >= _SHORTEST:
        yield from (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])


def _without_shapes(data: bytes) -> Iterator[bytes]:
    place = 0
    for _ in range(MOST):
        if (span := search(_SPANS, data, place)) is None:
            yield data[place:]
            return
        yield data[place : span.start()]
        place = span.end()
        head = search(_SHAPES, data[span.start() : min(place, span.start() + _HEAD)])
        if head is not None and head.lastgroup == b"pem" and (body := _PRIVATE_KEY.match(data, place)):
            place = body.end()
        yield _mask(head, span[0], data[place : place + 1])
    yield b" [the rest of this text is left out: it holds too many secrets]"


def _mask(head: ByteMatch | None, text: bytes, after: bytes) -> bytes:
    kind, mark = head.lastgroup if head is not None else None, MASK.encode()
    if head is None or kind is None or kind == b"before":
        begin = re.match(rb"[^\w-]?(?:[A-Za-z]+[_-]|AIza|AKIA|ASIA|eyJ)", text)
        return (begin[0] if begin else b"") + mark
    kept = head[kind]
    value = text[len(kept) :].lstrip()
    if len(value) < _SHORTEST_OF.get(kind, 0) or (kind == b"soft" and after == b"("):
        return text
    return kept + b" " * (kind in _KEPT) + mark + b"@" * (kind == b"site")


# ----------------------------------------------------------------------------------------------------
# The environment of child processes.


_POSIX = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_WINDOWS = (
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT",
    "PROCESSOR_ARCHITECTURE", "PROGRAMDATA",
    "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
PASSED_ON = _WINDOWS if os.name == "nt" else _POSIX
"""Variables that a program needs to find its files and to use the user's language; none is a secret."""


def bare_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the part of ``environment`` that any program gets: no key, token or proxy."""
    names = (*PASSED_ON, *(name for name in environment if name.startswith("LC_")))
    return {
        name: environment[name]
        for name in names
        if name in environment and not environment[name].startswith("()")
    }
