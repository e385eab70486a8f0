"""``make audit``: known weaknesses of locked versions. Fails when there are some, not when nobody can be
asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OPTIONS = ("--require-hashes", "--disable-pip", "--progress-spinner=off", "--timeout=20")


def main(files: list[str]) -> int:
    """1 when a version with a known weakness is in one of the files."""
    return max([_looked_up(file) for file in files], default=0)


def _looked_up(file: str) -> int:
    command = [str(Path(sys.executable).with_name("pip-audit")), *OPTIONS, f"--requirement={file}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{file}: not looked up ({type(error).__name__})")
        return 0
    if done.returncode == 0:
        print(f"{file}: no known weaknesses")
        return 0
    if "known vulnerabilit" in done.stderr:
        print(f"{file}:", done.stderr, done.stdout, sep="\n")
        return 1
    said = done.stderr.strip().splitlines() or ["no word"]
    print(f"{file}: not looked up, because the advisories cannot be reached ({said[-1][:200]})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
