"""What a model should know of the machine: the system, and where it differs from a common one."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

WSL = "Linux inside Windows (WSL): drives of Windows are under /mnt, and programs of Windows end with .exe"
TERMUX = "Termux on Android: packages come with pkg, nothing runs as root, and /usr is $PREFIX"
CONTAINER = "inside a container: what is not in a mounted directory is gone with it"
CONTAINER_SIGNS = (".dockerenv", "run/.containerenv")


def system_line(
    environ: Mapping[str, str], *, system: str = "", release: str = "", root: Path = Path("/")
) -> str:
    """Return the name and the processor of the system, and what is special about it. What is not given is
    that of this machine."""
    name = " ".join(filter(None, (system or platform.system(), platform.machine())))
    if "TERMUX_VERSION" in environ:
        return f"{name}, {TERMUX}"
    if "microsoft" in (release or platform.release()).lower():
        return f"{name}, {WSL}"
    return f"{name}, {CONTAINER}" if any((root / sign).exists() for sign in CONTAINER_SIGNS) else name
