"""deploy/: the compose file names what there is, opens nothing to other machines, and its app is one."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from fsm_agent.dispatch.worker import App
from fsm_agent.sessions.store import Store
from fsm_agent.settings.errors import every_setting

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_three_workers_stand_behind_a_database_and_a_dispatcher() -> None:
    assert set(SERVICES) == {"postgres", "temporal", "worker"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 3
    assert set(SERVICES["worker"]["depends_on"]) == {"postgres", "temporal"}
    for name, service in SERVICES.items():
        for other in service.get("depends_on", {}):
            assert "healthcheck" in SERVICES[other], f"{name} waits for {other}"
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in COMPOSE["volumes"]


def test_no_port_is_open_to_other_machines_and_no_password_is_written_down() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert re.findall(r"(?:PASSWORD|PWD): (?!\$\{POSTGRES_PASSWORD:\?)", text) == []
    assert all(re.fullmatch(r"[\w./-]+:[\d.]+", one["image"]) for one in SERVICES.values() if "image" in one)


def test_the_settings_of_the_workers_are_settings() -> None:
    names = [
        name.removeprefix("FSM_AGENT_").lower().replace("__", ".")
        for name in SERVICES["worker"]["environment"]
    ]
    assert names
    assert set(names) <= set(every_setting())


def test_the_image_has_what_a_worker_needs(tmp_path: Path) -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    extras = re.search(r"'\.\[(.*)\]'", "\n".join(lines))
    assert extras is not None
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(extras[1].split(",")) <= set(known)
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert all((ROOT / one).exists() for one in copied)
    assert any(line.startswith("USER ") for line in lines), "not as root"


def test_the_app_of_the_image_is_one(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("app", DEPLOY / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    App.of(module.make_agent, "app:make_agent", Store(tmp_path))
