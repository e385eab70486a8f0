"""Files that hold keys of other services: what a command reads of them goes to the provider of the model."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator

from fsm_agent.approvals.acting_files import ACTING_FILES, ActingFiles, LastNames, as_names, plain_name
from fsm_agent.support.redaction import mask

KEY_FILES = ActingFiles("holds keys", (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pypirc", ".git-credentials", ".htpasswd",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
    "*.ppk",
    "credentials", "credentials.*", "credentials*.json", "secrets.*", "service-account*.json", ".vault-token",
    ".ssh/**", ".aws/**", ".azure/**", ".kube/**", ".gnupg/**", ".docker/config.json", ".config/gcloud/**",
    ".config/gh/**", ".config/containers/**", ".my.cnf", ".pgpass", ".s3cfg", ".boto", "*.tfstate",
    "*.tfvars",
    ".terraform.d/**", ".git/credentials",
))  # fmt: skip
"""By their names alone."""
MAY_HOLD = ActingFiles("holds a key", (
    ".npmrc", ".yarnrc*", "bunfig.toml", "pip.conf", "pip.ini", "uv.toml", ".condarc", ".gemrc", ".cargo/**",
    ".m2/**", ".gradle/**", "gradle.properties", "nuget.config", ".composer/**", ".terraformrc", ".wgetrc",
    ".curlrc",
    ".git/config", ".git/config.worktree", ".git/modules/**/config", "*.pem", "*.key", ".dockercfg",
))  # fmt: skip
"""Those that mostly hold something else: what is in them decides."""
_SAMPLES = re.compile(r".*\.(example|sample|template|dist|tmpl|md|pub)", re.DOTALL)
_PRIVATE = re.compile(r"PRIVATE KEY-----|_auth|extraheader|credential", re.IGNORECASE)
LOOKED_AT = 64_000
"""Characters in which a key is looked for."""
MOST = 50_000
"""Entries of folders that are looked at for one command."""


_BY_NAME = (KEY_FILES, *(row for row in ACTING_FILES if row.reason.startswith("holds keys")))
_LAST = LastNames((*_BY_NAME, MAY_HOLD))


def _kind(path: str) -> str:
    plain = as_names(path)
    if _SAMPLES.fullmatch(plain):
        return ""
    if any(row.has(plain) for row in _BY_NAME):
        return "key"
    return "perhaps" if MAY_HOLD.has(plain) else ""


def holds_keys(path: str, root: str) -> str:
    """Why reading the file of this name, relative to ``root``, needs a yes; empty when it needs none. The
    real name counts as well as the one that is given."""
    whole = os.path.normpath(os.path.join(root, path))
    for one in dict.fromkeys((whole, os.path.realpath(whole))):
        near = os.path.relpath(one, root)
        kind = _kind(near if near[:2] != ".." else one)
        if kind == "key" or (kind == "perhaps" and _has_a_key(one)):
            return f"{path} holds keys"
    return ""


def matched(pattern: str, root: str) -> Iterator[str]:
    """The paths that a word with wildcards stands for."""
    found = glob.iglob(pattern, root_dir=root, include_hidden=False)
    yield from itertools.islice(found, MOST)


def below(folder: str, root: str) -> str:
    """Why a search through all files of a folder needs a yes, empty when it needs none."""
    start, seen = os.path.join(root, folder), 0
    for place, folders, names in os.walk(start):
        seen += len(folders) + len(names)
        if seen > MOST:
            return f"{folder} has more than {MOST:,} files, any of which may hold keys"
        near = os.path.relpath(place, root)
        whole = _kind(f"{near}/x") != ""  # a folder of which all counts
        for name in names:
            if (whole or plain_name(name) in _LAST) and (reason := holds_keys(f"{near}/{name}", root)):
                return reason
    return ""


def _has_a_key(path: str) -> bool:
    """One that is not there, or no plain file, has none; one that cannot be read has."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LOOKED_AT)
    except OSError:
        return True
    return _PRIVATE.search(text) is not None or mask(text) != text
