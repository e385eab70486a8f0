"""What tests of the doors share: a service in this process with a scripted model, and callers of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest

from fsm_agent import Agent
from fsm_agent.dispatch.service import SCOPES, Caller, SessionService
from fsm_agent.serve.app import app_of
from fsm_agent.serve.keys import KeyRing
from fsm_agent.sessions.store import Store
from fsm_agent.testing import ScriptedModel

SETTINGS = {"prompt": {"context_files": False}, "store": {"index": False}}
ANN = Caller("k-ann", "Ann", frozenset(SCOPES))
MakeService = Callable[..., AbstractAsyncContextManager[SessionService]]


@pytest.fixture
def caller() -> Caller:
    """A caller that may do everything."""
    return ANN


@pytest.fixture
def serving(store: Store) -> MakeService:
    """A service that runs turns in this process: ``async with serving(text("hello"), tools=[look]) as service``. Each
    turn begins the script again; options are those of ``Agent``."""

    @asynccontextmanager
    async def made(
        *script: Any, service: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[SessionService]:
        def make_agent() -> Agent[Any, Any]:
            given = {"toolsets": [], "settings": SETTINGS, "system_prompt": "You are a test.", **options}
            return Agent(ScriptedModel(script), **given)

        async with SessionService(
            make_agent, store, **{"sweep": 0.02, "age": 0.0, **(service or {})}
        ) as opened:
            yield opened

    return made


TOKEN = "the-token-of-tests"
WebClient = Callable[..., httpx2.AsyncClient]


@pytest.fixture
def web(store: Store) -> WebClient:
    """A client of a service's whole application, in this process, with a token that may do everything:
    ``async with serving(text("hi")) as service, web(service) as client``. ``key=""`` sends none; options are those of
    ``app_of``."""

    def made(service: SessionService, *, key: str = TOKEN, **options: Any) -> httpx2.AsyncClient:
        app = app_of(service, KeyRing(store, TOKEN), **options)
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:8000",
            headers={"authorization": f"Bearer {key}"} if key else {}, timeout=60,
        )  # fmt: skip

    return made
