"""How this package was installed, and how to add an extra to it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from urllib.parse import unquote

from fsm_agent.errors import ConfigError

PACKAGE = "fsm-agent"
_EXTRA = re.compile(r"\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")

EXTENSIONS = "fsm_agent.extensions"
"""Entry points of installed extensions (``fsm_agent.extension``)."""


def installed_extensions() -> dict[str, EntryPoint]:
    """Return the extensions of installed packages by name, without loading them."""
    return {one.name: one for one in entry_points(group=EXTENSIONS)}


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation. A package index may not have the package:
    one used from its folder is installed from there again, else the requirements of the extra are named."""
    try:
        return command_for(extra, distribution(PACKAGE), Path(sys.prefix), sys.executable)
    except PackageNotFoundError:
        return f"pip install '.[{extra}]' in the folder of {PACKAGE}'s pyproject.toml"


@contextmanager
def importing(extra: str, what: str) -> Iterator[None]:
    """Import modules that need an extra. Raises ``ConfigError`` with the command that installs it; ``what``
    names the importer, with its verb."""
    try:
        yield
    except ImportError as error:
        why = f"{what} {error.name}, which is not installed"
        raise ConfigError(why, None, install_command(extra)) from None


def command_for(extra: str, found: Distribution, prefix: Path, python: str) -> str:
    """Return ``install_command`` for a package in an environment: its folder, and its Python."""
    folder, needs = _editable_folder(found), shlex.join(requirements_of(found, extra))
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx inject {PACKAGE} {needs}"
    what = needs if folder is None else f"--editable {shlex.quote(f'{folder}[{extra}]')}"
    if (prefix / "uv-receipt.toml").exists() or _made_by_uv(prefix):
        return f"uv pip install --python {shlex.quote(_short_path(python))} {what}"
    return f"{_pip(python)} install {what}"


def requirements_of(found: Distribution, extra: str) -> list[str]:
    """Return the requirements of an extra, as stated by the metadata of an installed package, also for
    other systems."""
    rows = [row.partition(";") for row in found.requires or ()]
    named = [(needed.strip(), _EXTRA.search(where)) for needed, _, where in rows]
    return [needed for needed, match in named if match and match["extra"] == extra]


def _editable_folder(found: Distribution) -> str | None:
    """Return the source folder of an editable installation."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    address = str(origin.get("url", ""))
    editable = bool(origin.get("dir_info", {}).get("editable")) and address.startswith("file://")
    return _short_path(unquote(address.removeprefix("file://"))) if editable else None


def _made_by_uv(prefix: Path) -> bool:
    try:
        return re.search(r"^uv = ", (prefix / "pyvenv.cfg").read_text("utf-8"), re.MULTILINE) is not None
    except OSError:
        return False


def _pip(python: str) -> str:
    """Return ``pip`` if it belongs to this Python, else its full name."""
    found = shutil.which("pip")
    ours = found is not None and Path(found).parent == Path(python).parent
    return "pip" if ours else f"{shlex.quote(_short_path(python))} -m pip"


def _short_path(path: str) -> str:
    """Return the shorter form of a path: relative to here if it is below."""
    near = os.path.relpath(path) if path.startswith(os.getcwd()) else path
    return near if len(near) < len(path) else path
