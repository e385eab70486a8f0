"""How this package was installed, and so how what an extra of it names can be added."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from urllib.parse import unquote

PACKAGE = "fsm-agent"
_EXTRA = re.compile(r"\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")

EXTENSIONS = "fsm_agent.extensions"
"""Entry points of installed extensions (``fsm_agent.extension``)."""


def installed_extensions() -> dict[str, EntryPoint]:
    """The extensions of installed packages, by their names; none of them is loaded."""
    return {one.name: one for one in entry_points(group=EXTENSIONS)}


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation. A package index need not know the package:
    what is used from its folder is installed from there again, else what the extra needs is named."""
    try:
        return command_for(extra, distribution(PACKAGE), Path(sys.prefix), sys.executable)
    except PackageNotFoundError:
        return f"pip install '.[{extra}]' in the folder of {PACKAGE}'s pyproject.toml"


def command_for(extra: str, found: Distribution, prefix: Path, python: str) -> str:
    """``install_command`` for a package in an environment: its folder, and its Python."""
    folder, needs = _editable_folder(found), shlex.join(requirements_of(found, extra))
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx inject {PACKAGE} {needs}"
    what = needs if folder is None else f"--editable {shlex.quote(f'{folder}[{extra}]')}"
    if (prefix / "uv-receipt.toml").exists() or _made_by_uv(prefix):
        return f"uv pip install --python {shlex.quote(_shown(python))} {what}"
    return f"{_pip(python)} install {what}"


def requirements_of(found: Distribution, extra: str) -> list[str]:
    """Return what an extra needs, as the metadata of an installed package says; for other systems, too."""
    rows = [row.partition(";") for row in found.requires or ()]
    named = [(needed.strip(), _EXTRA.search(where)) for needed, _, where in rows]
    return [needed for needed, match in named if match and match["extra"] == extra]


def _editable_folder(found: Distribution) -> str | None:
    """The folder that the code is in, when it is used from there."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    address = str(origin.get("url", ""))
    editable = bool(origin.get("dir_info", {}).get("editable")) and address.startswith("file://")
    return _shown(unquote(address.removeprefix("file://"))) if editable else None


def _made_by_uv(prefix: Path) -> bool:
    try:
        return re.search(r"^uv = ", (prefix / "pyvenv.cfg").read_text("utf-8"), re.MULTILINE) is not None
    except OSError:
        return False


def _pip(python: str) -> str:
    """``pip`` where that is the one of this Python, else by its whole name."""
    found = shutil.which("pip")
    ours = found is not None and Path(found).parent == Path(python).parent
    return "pip" if ours else f"{shlex.quote(_shown(python))} -m pip"


def _shown(path: str) -> str:
    """The shorter way to a path: from here, where it is below here."""
    near = os.path.relpath(path) if path.startswith(os.getcwd()) else path
    return near if len(near) < len(path) else path
