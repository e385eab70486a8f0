"""Logging in to a server over HTTP: begun by a person, used and refreshed by turns, kept where only the person reads
it."""

from __future__ import annotations

import json
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fsm_agent.errors import ConfigError
from fsm_agent.support.files import LOGINS
from fsm_agent.support.redaction import mask
from fsm_agent.toolsets.mcp.config import KEYRING, Login, ServerConfig, servers_of
from fsm_agent.toolsets.mcp.oauth import log_in
from tests.helpers.http_server import Answer, Asked, HttpServer
from tests.helpers.mcp_bench import bench

pytestmark = pytest.mark.anyio
JSON = "application/json"


@pytest.fixture(autouse=True)
def no_keyring() -> Iterator[None]:
    """The keyring of the machine that runs the tests is left alone."""
    import keyring
    from keyring.backends.fail import Keyring

    before = keyring.get_keyring()
    keyring.set_keyring(Keyring())
    yield
    keyring.set_keyring(before)


class Server(HttpServer):
    """An MCP server and its authorization server. ``valid``: the access tokens that it takes; ``lasts``: seconds of
    each. ``asked``: what was asked besides messages."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.valid: set[str] = set()
        self.asked: list[str] = []
        self.lasts, self.refreshes, self.made = 3_600, True, 0
        self.assertion, self.received = "", b""

    def answer(self, asked: Asked) -> Answer:
        path, _, query = asked.path.partition("?")
        self.received += repr(asked.headers).encode() + asked.raw
        if path == "/mcp":
            return self._message(asked)
        self.asked.append(path)
        match path:
            case "/.well-known/oauth-protected-resource/mcp":
                return _json({"resource": f"{self.root}/mcp", "authorization_servers": [self.root]})
            case "/.well-known/oauth-authorization-server":
                ends = {
                    f"{name}_endpoint": f"{self.root}/{name}"
                    for name in ("authorization", "token", "registration")
                }
                return _json({"issuer": self.root, **ends, "response_types_supported": ["code"]})
            case "/registration":
                return _json({**asked.body, "client_id": "client-1"}, 201)
            case "/authorization":
                given = {name: values[0] for name, values in parse_qs(query).items()}
                back = urlencode({"code": "code-1", "state": given["state"]})
                return Answer(302, headers={"location": f"{given['redirect_uri']}?{back}"})
            case "/token":
                given = {name: values[0] for name, values in parse_qs(asked.raw.decode()).items()}
                self.asked.append(given["grant_type"])
                self.assertion = given.get("client_assertion", "")
                if given["grant_type"] == "refresh_token" and not self.refreshes:
                    return _json({"error": "invalid_grant"}, 400)
                self.made += 1
                self.valid = {f"access-token-{self.made}"}
                tokens = {
                    "access_token": f"access-token-{self.made}",
                    "refresh_token": f"refresh-token-{self.made}",
                }
                return _json({**tokens, "token_type": "bearer", "expires_in": self.lasts})
        return Answer(404)

    def _message(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization", "").removeprefix("Bearer ") not in self.valid:
            return Answer(401, headers={"www-authenticate": "Bearer"})
        if asked.method != "POST":
            return Answer(405)
        message = asked.body
        if "id" not in message:
            return Answer(202)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": asked.headers["authorization"]}]},
        }  # fmt: skip
        if message["method"] not in results:
            return Answer(404)
        return _json({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})

    def config(self, **oauth: Any) -> dict[str, Any]:
        return {"url": f"{self.root}/mcp", "oauth": oauth or True}


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), JSON)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


Opened = Callable[[str], Awaitable[None]]


async def agree(address: str) -> None:
    """A person's browser, in which the person agrees."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        answered = await browser.get(address)
        assert "You are logged in." in answered.text


async def logged_in(home: Path, config: dict[str, Any], opened: Opened = agree) -> str:
    where, tools = await log_in("s", ServerConfig.model_validate(config), home, {}, opened, 20)
    assert tools == 1
    return where


async def test_a_login_is_kept_privately_used_by_turns_and_refreshed(server: Server, tmp_path: Path) -> None:
    config = server.config()
    async with bench(tmp_path, {"s": config}) as table:
        (line,) = await table.ready()
        assert "(HTTP 401 Unauthorized); log in with: fsm-agent mcp login s" in line
    assert not server.asked, "without a person no client is registered"
    where = Path(await logged_in(tmp_path, config))
    assert where.parent == tmp_path / LOGINS
    assert stat.S_IMODE(where.stat().st_mode) == 0o600
    assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700
    assert mask("it said access-token-1 and refresh-token-1") == "it said *** and ***"
    async with bench(tmp_path, {"s": config}) as table:
        assert await table.ready() == ()
        assert "access-token-1" not in (told := (await table.call("s__echo")).text), "it is masked in results"
        assert "Bearer" in told
    assert server.asked.count("/authorization") == 1
    # a login whose time is over is refreshed without a person, where the authorization server is
    kept = json.loads(where.read_text())
    where.write_text(json.dumps(kept | {"expires": 1.0}))
    async with bench(tmp_path, {"s": config}) as table:
        assert await table.ready() == ()
    assert (server.asked[-2:], server.valid) == (["/token", "refresh_token"], {"access-token-2"})
    assert json.loads(where.read_text())["tokens"]["refresh_token"] == "refresh-token-2"


@pytest.mark.slow
async def test_a_login_that_is_over_for_good_needs_a_person(server: Server, tmp_path: Path) -> None:
    config = server.config()
    where = Path(await logged_in(tmp_path, config))
    where.write_text(json.dumps(json.loads(where.read_text()) | {"expires": 1.0}))
    server.refreshes, server.valid = False, set()
    async with bench(tmp_path, {"s": config}) as table:
        (line,) = await table.ready()
        assert "log in with: fsm-agent mcp login s" in line
    assert server.asked.count("/authorization") == 1
    login = Login(tmp_path, "s", config["url"])
    assert login.forget()
    assert not login.forget()
    assert not where.exists()


@pytest.mark.slow
async def test_only_the_answer_to_this_login_is_taken(server: Server, tmp_path: Path) -> None:
    said: list[int] = []

    async def meddle(address: str) -> None:
        back = parse_qs(httpx2.URL(address).query.decode())["redirect_uri"][0]
        async with httpx2.AsyncClient(trust_env=False) as web:
            for path, headers in (
                ("?code=stolen&state=guessed", {}),
                ("?code=stolen", {}),
                ("/../other?code=x", {}),
                ("", {"host": "evil.example.org"}),
            ):
                said.append((await web.get(back + path, headers=headers)).status_code)
        await agree(address)

    await logged_in(tmp_path, server.config(), meddle)
    assert said == [409, 409, 404, 404]


@pytest.mark.slow
async def test_a_refused_login_says_why(server: Server, tmp_path: Path) -> None:
    async def refuse(address: str) -> None:
        given = {name: values[0] for name, values in parse_qs(httpx2.URL(address).query.decode()).items()}
        back = urlencode({"error": "access_denied", "state": given["state"]})
        async with httpx2.AsyncClient(trust_env=False) as web:
            assert (await web.get(f"{given['redirect_uri']}?{back}")).status_code == 400

    with pytest.raises(ConfigError, match=r"no login to s: .*the login was refused: access_denied"):
        await logged_in(tmp_path, server.config(), refuse)
    assert not (tmp_path / LOGINS).exists()


@pytest.mark.slow
async def test_a_client_that_the_user_registered_is_used(server: Server, tmp_path: Path) -> None:
    config = server.config(client_id="mine", client_secret="${SECRET}")
    seen: list[str] = []

    async def look(address: str) -> None:
        seen.append(address)
        await agree(address)

    await log_in("s", ServerConfig.model_validate(config), tmp_path, {"SECRET": "s3cret-of-mine"}, look, 20)
    assert "client_id=mine" in seen[0]
    assert "/registration" not in server.asked


async def test_a_client_that_the_issuer_knows_needs_no_person(server: Server, tmp_path: Path) -> None:
    known = {"client_id": "mine", "client_secret": "s3cret-of-mine"}
    async with bench(tmp_path, {"s": server.config(**known, issuer=server.root)}) as table:
        assert await table.ready() == ()
        assert "access-token-1" not in (await table.call("s__echo")).text, "it is masked in results"
    assert server.asked[-2:] == ["/token", "client_credentials"]
    assert not (tmp_path / LOGINS).exists(), "the token is kept nowhere"
    server.asked.clear()
    server.valid = set()
    async with bench(tmp_path, {"s": server.config(**known, issuer="https://other.example.org")}) as table:
        (line,) = await table.ready()
        assert "mcp login" not in line
    assert "/token" not in server.asked, "the secret goes to its issuer alone"


async def test_a_client_may_sign_with_a_key_that_is_sent_nowhere(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    monkeypatch.setenv("SIGNING_KEY", pem)
    known = {
        "client_id": "mine", "private_key": "${SIGNING_KEY}", "algorithm": "ES256", "issuer": server.root,
    }  # fmt: skip
    async with bench(tmp_path, {"s": server.config(**known)}) as table:
        assert await table.ready() == ()
    claims = jwt.decode(server.assertion, key.public_key(), algorithms=["ES256"], audience=server.root)
    assert (claims["iss"], claims["sub"]) == ("mine", "mine")
    assert pem.splitlines()[1].encode() not in server.received
    assert not (tmp_path / LOGINS).exists()
    monkeypatch.setenv("SIGNING_KEY", "no-key-at-all")
    server.asked.clear()
    server.valid = set()
    async with bench(tmp_path, {"s": server.config(**known)}) as table:
        (line,) = await table.ready()
        assert "private_key cannot sign" in line
        assert "a private key in PEM for ES256" in line
        assert "no-key-at-all" not in line
    assert "/token" not in server.asked


@pytest.mark.parametrize(
    ("oauth", "says"),
    [
        ({"client_id": "x", "private_key": "k"}, "a private_key without an issuer"),
        ({"issuer": "https://a.example.org", "client_id": "x", "client_secret": "y", "private_key": "k"},
         "a private_key and a client_secret"),
        ({"issuer": "https://a.example.org"}, "an issuer alone.*with client_id, and with client_secret"),
        ({"issuer": "http://a.example.org", "client_id": "x", "client_secret": "y"},
         r"issuer http://a\.example\.org.*https://"),
    ],
)  # fmt: skip
def test_an_issuer_is_named_with_its_client_and_asked_over_tls(
    tmp_path: Path, oauth: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        servers_of({"s": {"url": "https://s.example.org", "oauth": oauth}}, tmp_path)


def test_a_login_is_kept_in_the_keyring_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keyring

    kept: dict[tuple[str, str], str] = {}
    monkeypatch.setattr(keyring, "get_password", lambda service, name: kept.get((service, name)))
    monkeypatch.setattr(
        keyring, "set_password", lambda service, name, text: kept.update({(service, name): text})
    )
    monkeypatch.setattr(keyring, "delete_password", lambda service, name: kept.pop((service, name)))
    login = Login(tmp_path, "s", "https://s.example.org/mcp")
    assert login.write({"tokens": {"access_token": "in-the-keyring-1"}}) == KEYRING
    assert login.read()["tokens"] == {"access_token": "in-the-keyring-1"}
    assert Login(tmp_path, "s", "https://other.example.org/mcp").read() == {}
    assert [*tmp_path.iterdir()] == []
    assert login.forget()
    assert not kept


def test_a_program_has_no_login(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="oauth beside a command"):
        servers_of({"s": {"command": "x", "oauth": True}}, tmp_path)
    assert servers_of({"s": {"url": "https://s.example.org", "oauth": False}}, tmp_path)["s"].oauth is None
