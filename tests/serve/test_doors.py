"""Doors: which are open, what they need, and one of a package of its own."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fsm_agent import Agent
from fsm_agent.dispatch.service import SessionService
from fsm_agent.errors import ConfigError
from fsm_agent.extension import DOORS
from fsm_agent.serve.app import app_of
from fsm_agent.serve.doors import Door, doors_of, routes_of
from fsm_agent.serve.keys import KeyRing
from fsm_agent.serve.web import caller_of, route
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.testing import ScriptedModel, ScriptedServer, text
from tests.helpers.processes import environment, printed, ran
from tests.serve.conftest import MakeService, WebClient
from tests.serve.processes import ServerProcess

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "door"


class Bell(Door):
    name = "bell"
    public = ("/bell/page",)

    def __init__(self, path: str = "/bell") -> None:
        self.path = path
        self.life: list[str] = []

    def routes(self, service: SessionService) -> Sequence[Route]:
        async def ring(request: Request) -> Response:
            caller_of(request).need("read")
            return PlainTextResponse("ding")

        return [route(self.path, ring), route(f"{self.path}/page", ring)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.life.append("runs")
        yield
        self.life.append("leaves")

    async def aclose(self) -> None:
        self.life.append("closed")


async def test_a_door_answers_behind_the_guard_and_is_named(serving: MakeService, web: WebClient) -> None:
    async with serving(text("hi")) as service:
        async with web(service, doors=[Bell()]) as client:
            assert (await client.get("/bell")).text == "ding"
            assert (await client.get("/health")).json()["doors"] == ["bell"]
            assert (await client.get("/v1/models")).status_code == 404
        async with web(service, doors=[Bell()], key="") as client:
            assert (await client.get("/bell")).status_code == 401
            # a public path needs no key, and gives no rights either
            assert (await client.get("/bell/page")).status_code == 401


async def test_a_door_lives_as_long_as_the_application(store: Store, serving: MakeService) -> None:
    async with serving(text("hi")) as service:
        bell = Bell()
        app = app_of(service, KeyRing(store, "token"), doors=[bell])
        async with app.router.lifespan_context(app):
            assert bell.life == ["runs"]
        assert bell.life == ["runs", "leaves", "closed"]


async def test_two_doors_at_one_address_are_refused(serving: MakeService) -> None:
    class Second(Bell):
        name = "second"

    async with serving(text("hi")) as service:
        with pytest.raises(ConfigError, match="the doors bell and second have the same address"):
            routes_of([Bell(), Second()], service)


def test_the_doors_of_this_package_are_open(store: Store) -> None:
    found = doors_of({}, KeptValues(store))
    assert [one.name for one in found.open] == list(DOORS)
    assert found.closed == {}
    with pytest.raises(ConfigError, match="no such extension is installed"):
        doors_of({"nothing": {}}, KeptValues(store))


def test_a_door_of_this_package_gets_its_settings_and_agents_leave_them_alone(store: Store) -> None:
    settings = {name: {} for name in DOORS}
    assert [one.name for one in doors_of(settings, KeptValues(store)).open] == [*DOORS]
    with pytest.raises(ConfigError, match=r"extensions\.openai\.color: .*; allowed: no settings"):
        doors_of({"openai": {"color": "red"}}, KeptValues(store))
    agent = Agent(ScriptedModel([text("hi")]), toolsets=[], store=store, settings={"extensions": settings})
    assert agent.chat("hello") == "hi"


def test_a_door_without_its_library_is_closed_and_says_what_it_needs() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['mcp', 'ag_ui']));"
        "from fsm_agent.serve.doors import built_in_doors as all;"
        "print([one.name for one in all().open], sorted(all().closed), all().closed['mcp'])"
    )
    said = printed("-c", program)
    assert said.startswith("['openai'] ['agui', 'mcp'] ")
    assert "mcp" in said.split("] ")[-1]


def installed(folder: Path) -> str:
    """What an installation leaves of the example; the path to it."""
    metadata = folder / "fsm_agent_plain-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fsm-agent-plain\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[fsm_agent.extensions]\nplain = fsm_agent_plain:PlainDoor\n")
    (folder / "fsm_agent_plain").symlink_to(EXAMPLE / "fsm_agent_plain")
    return environment(folder)["PYTHONPATH"]


@pytest.mark.slow
async def test_an_installed_door_is_open_where_the_settings_name_it(tmp_path: Path, home: Path) -> None:
    path = installed(tmp_path / "site")
    home.mkdir(exist_ok=True)
    with ScriptedServer([text("hello there")]) as model:
        options = ("--model", "local:m", "--base-url", model.url)
        with ServerProcess(tmp_path, home, *options, PYTHONPATH=path) as server:
            assert re.search(r"doors openai, agui, mcp$", server.said, re.MULTILINE)
        (home / "config.toml").write_text('[settings.extensions.plain]\npath = "/say"\n')
        with ServerProcess(tmp_path, home, *options, PYTHONPATH=path) as server:
            assert re.search(r"doors openai, agui, mcp, plain$", server.said, re.MULTILINE)
            async with server.client() as client:
                said = await client.post("/say", json={"say": "hi"})
                assert (said.status_code, said.text) == (200, "hello there\n")
                assert said.headers["x-session"].startswith("s-")
                refused = await client.post("/say", json={"say": ""})
                assert (refused.status_code, refused.text) == (400, "the message is empty\n")
            async with server.client("wrong") as client:
                assert (await client.post("/say", json={"say": "hi"})).status_code == 401
    env = environment(PYTHONPATH=path, FSM_AGENT_HOME=str(home))
    doctor = ran("-m", "fsm_agent", "doctor", env=env).stdout
    assert "extension plain: answers at /say" in " ".join(doctor.split())


@pytest.mark.slow
def test_the_example_is_installed_by_pip(tmp_path: Path, store: Store) -> None:
    site = tmp_path / "site"
    printed("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", site, EXAMPLE)
    program = "from fsm_agent.extension import load_extension as load; print(load('plain').settings().path)"
    assert printed("-c", program, env=environment(site)) == "/plain\n"
