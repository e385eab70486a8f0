from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a home of its own and none of the user's keys."""
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path / "home"))
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "ANTHROPIC_API_KEY", "FSM_AGENT_MODEL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
