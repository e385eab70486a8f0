"""On a machine that lacks something, make says what in one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OLD = "#!/bin/sh\nexit 1\n"
WITHOUT_VENV = '#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\n'
OFFLINE = f"""#!/bin/sh
test "$2" = venv || exit 0
mkdir -p $3/bin
printf '#!/bin/sh\\ncase "$*" in *pip*) echo no route to the index >&2; exit 1;; esac\\nexec {sys.executable} "$@"\\n' >$3/bin/python
chmod +x $3/bin/python
"""


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (
            "",
            "fsm_agent needs Python 3.11 or newer; none was found. Install it, or: make PYTHON=/path/to/python3",
        ),
        (OLD, "fsm_agent needs Python 3.11 or newer; given: {python}"),
        (WITHOUT_VENV, "{python} has no module venv; install it (Debian: apt install python3-venv)"),
        (
            OFFLINE,
            "the packages cannot be installed: is the package index reachable? What pip said is in .venv-python.log",
        ),
    ],
    ids=["no Python", "an old Python", "no venv module", "no network"],
)
def test_what_is_missing_is_said_in_one_line(python: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements/testing.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    program = tmp_path / "python"
    program.write_text(python)
    program.chmod(0o755)
    given = str(program) if python else ""
    done = subprocess.run(
        ["make", "test", f"PYTHON={given}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("make", "the lock is for"))]
    assert lines == [said.format(python=program)]
