"""Shapes of secrets, one a row, each with a text that it hides something of and one that it leaves alone.

Every expression begins with something that is fixed, repeats what it repeats by bounds or up to a character
that cannot be in it, and looks neither ahead nor back: its time is linear in the text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

MASK = "***"


@dataclass(frozen=True)
class SecretShape:
    """``sign``: in lower case; it, or one of several, is in every text that the shape is in. ``expression``: its group ``kept`` stays,
    the rest of what it matches is the secret. ``example``: a text, with its secret in ``⟨⟩``. ``ordinary``: a
    text that stays. ``mistakes``: ordinary text that is hidden all the same, if any is known."""

    name: str
    sign: str | tuple[str, ...]
    expression: str
    example: str
    ordinary: str
    mistakes: str = ""

    @cached_property
    def signs(self) -> tuple[str, ...]:
        """A text without any of them need not be searched."""
        return (self.sign,) if isinstance(self.sign, str) else self.sign

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """Compiled once."""
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
