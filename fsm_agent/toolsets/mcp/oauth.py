"""OAuth logins to MCP servers, with the SDK's provider.

Turns use a login and refresh it; only ``log_in`` begins one, because it needs a person with a browser. A
client that an ``issuer`` knows needs no person: each connection gets its own tokens, which are not stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl

from fsm_agent.errors import ConfigError
from fsm_agent.settings import Mcp
from fsm_agent.support.redaction import keep_secret, mask
from fsm_agent.toolsets.mcp.config import Login, OAuth, ServerConfig
from fsm_agent.toolsets.mcp.connection import Connection
from fsm_agent.toolsets.mcp.process import LOGS, Broken, McpRefused, ServerLog, Unset, Unusable, endpoint_of

LOOPBACK, PATH = "127.0.0.1", "/callback"
NEEDED = "a login is needed"
_PAGE = (
    "<!doctype html><meta charset=utf-8><title>fsm-agent</title><p>{words}</p><p>You can close this page.</p>"
)


class _Storage:
    """Token storage of the provider, with what refreshes a login in another process. ``where``: its place."""

    def __init__(self, login: Login, rules: OAuth, client_secret: str | None, redirect: str) -> None:
        self._login, self._rules, self._secret, self._redirect = login, rules, client_secret, redirect
        self.kept: dict[str, Any] = {}
        self.provider: OAuthClientProvider | None = None
        self.where = ""

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens, and restore what is needed to refresh them."""
        context = self._context
        if (metadata := self.kept.get("metadata")) is not None:
            context.oauth_metadata = OAuthMetadata.model_validate(metadata)
        if (resource := self.kept.get("resource")) is not None:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(resource)
        context.auth_server_url = self.kept.get("server")
        context.token_expiry_time = self.kept.get("expires")
        tokens = self.kept.get("tokens")
        return None if tokens is None else OAuthToken.model_validate(tokens)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store new tokens, and what is needed to refresh them."""
        context = self._context
        self.kept |= {
            "tokens": tokens.model_dump(mode="json", exclude_none=True),
            "expires": None if tokens.expires_in is None else time.time() + tokens.expires_in,
            "server": context.auth_server_url,
        }
        for name, found in (
            ("metadata", context.oauth_metadata),
            ("resource", context.protected_resource_metadata),
        ):
            self.kept[name] = None if found is None else found.model_dump(mode="json", exclude_none=True)
        self.where = await asyncio.to_thread(self._login.write, self.kept)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client that was registered or that the user named."""
        if self._rules.client_id is not None:
            return OAuthClientInformationFull(
                client_id=self._rules.client_id,
                client_secret=self._secret,
                redirect_uris=[AnyUrl(self._redirect)],
                token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
            )
        client = self.kept.get("client")
        return None if client is None else OAuthClientInformationFull.model_validate(client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep the registered client for the next write."""
        self.kept["client"] = client_info.model_dump(mode="json", exclude_none=True)

    @property
    def _context(self) -> Any:
        assert self.provider is not None
        return self.provider.context


def stored_login(
    url: str, rules: OAuth, client_secret: str | None, login: Login
) -> OAuthClientProvider | None:
    """Return a request signer that uses and refreshes the stored login; ``None`` without one."""
    kept = login.read()
    if not kept.get("tokens"):
        return None
    storage = _Storage(login, rules, client_secret, f"http://{LOOPBACK}{PATH}")
    storage.kept = kept
    return _provider(url, rules, storage, f"http://{LOOPBACK}{PATH}", _refuse, _never)


class _Memory:
    """Keeps the tokens of one connection in memory. ``secrets`` collects all of them."""

    def __init__(self, secrets: set[str]) -> None:
        self.tokens: OAuthToken | None = None
        self._secrets = secrets

    async def get_tokens(self) -> OAuthToken | None:
        """Return the newest tokens."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep new tokens, and mask them in all output from then on."""
        self._secrets.add(tokens.access_token)
        keep_secret(self._secrets)
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return ``None``: the config file names the client."""
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Do nothing: no client is registered."""


def machine_login(
    url: str, rules: OAuth, client_secret: str | None, secrets: set[str]
) -> OAuthClientProvider:
    """Return a request signer with tokens that the ``issuer`` grants to the client itself; they are added to
    ``secrets``."""
    assert rules.client_id is not None
    assert client_secret is not None
    memory, client = _Memory(secrets), rules.client_id
    if rules.private_key is None:
        return ClientCredentialsOAuthProvider(url, memory, client, client_secret, issuer=rules.issuer)
    signing = SignedJWTParameters(
        issuer=client, subject=client, signing_key=client_secret, signing_algorithm=rules.algorithm
    )
    assertion = signing.create_assertion_provider()

    async def sign(audience: str) -> str:
        try:
            return await assertion(audience)
        except Exception:  # errors of two libraries, which may quote the key
            raise ConfigError(
                "private_key cannot sign",
                "a key that is not shown",
                f"a private key in PEM for {rules.algorithm}",
            ) from None

    return PrivateKeyJWTOAuthProvider(url, memory, client, sign, issuer=rules.issuer)


async def _refuse(address: str) -> None:
    raise OAuthFlowError(NEEDED)


async def _never() -> AuthorizationCodeResult:
    raise OAuthFlowError(NEEDED)


def _provider(
    url: str,
    rules: OAuth,
    storage: _Storage,
    redirect: str,
    on_redirect: Callable[[str], Awaitable[None]],
    on_callback: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> OAuthClientProvider:
    metadata = OAuthClientMetadata(
        client_name="fsm-agent",
        redirect_uris=[AnyUrl(redirect)],
        grant_types=["authorization_code", "refresh_token"],
    )
    provider = OAuthClientProvider(
        url, metadata, storage, on_redirect, on_callback, client_metadata_url=rules.client_metadata_url
    )
    storage.provider = provider
    return provider


class LoginPage:
    """A one-time local HTTP server that receives the browser's redirect with the code.

    ``opened`` receives the login address. After a login, ``where`` names its storage."""

    def __init__(
        self,
        url: str,
        rules: OAuth,
        client_secret: str | None,
        login: Login,
        opened: Callable[[str], Awaitable[None]],
    ) -> None:
        self._url, self._rules, self._secret, self._login = url, rules, client_secret, login
        self._opened = opened
        self._server: asyncio.Server | None = None
        self._storage: _Storage | None = None
        self._answer: asyncio.Future[AuthorizationCodeResult] | None = None
        self._state: list[str] | None = None

    @property
    def where(self) -> str:
        """The storage of the login; empty without one."""
        return "" if self._storage is None else self._storage.where

    async def __aenter__(self) -> OAuthClientProvider:
        """Return a request signer that logs in when a request is first refused."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self._rules.callback_port)
        self._port = self._server.sockets[0].getsockname()[1]
        redirect = f"http://{LOOPBACK}:{self._port}{PATH}"
        self._storage = _Storage(self._login, self._rules, self._secret, redirect)
        return _provider(self._url, self._rules, self._storage, redirect, self._begin, self._wait)

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _begin(self, address: str) -> None:
        self._answer = asyncio.get_running_loop().create_future()
        self._state = parse_qs(urlsplit(address).query).get("state")
        await self._opened(address)

    async def _wait(self) -> AuthorizationCodeResult:
        assert self._answer is not None
        return await self._answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            status, words = self._come_back(head.decode("latin-1"))
            body = _PAGE.format(words=escape(words)).encode()
            lines = (
                f"HTTP/1.1 {status}",
                "Content-Type: text/html; charset=utf-8",
                "Content-Security-Policy: default-src 'none'",
                "Referrer-Policy: no-referrer",
                f"Content-Length: {len(body)}",
                "Connection: close",
            )
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.close()

    def _come_back(self, head: str) -> tuple[str, str]:
        """Take the login's answer out of a request; return the HTTP status and the words for the browser."""
        first, *headers = head.split("\r\n")
        method, _, rest = first.partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        host = next((line[5:].strip() for line in headers if line.lower().startswith("host:")), "")
        if method != "GET" or target.path != PATH or host not in self._hosts:
            return "404 Not Found", "There is nothing here."
        if self._answer is None or self._answer.done():
            return "409 Conflict", "No login waits for this."
        query = parse_qs(target.query)
        given = {name: values[0] for name, values in query.items()}
        if query.get("state") != self._state:
            return "409 Conflict", "No login waits for this."
        if "code" not in given:
            why = given.get("error_description") or given.get("error") or "no code came back"
            self._answer.set_exception(OAuthFlowError(f"the login was refused: {why[:200]}"))
            return "400 Bad Request", "The login was refused."
        self._answer.set_result(
            AuthorizationCodeResult(code=given["code"], state=given.get("state"), iss=given.get("iss"))
        )
        return "200 OK", "You are logged in."

    @property
    def _hosts(self) -> tuple[str, ...]:
        return f"{LOOPBACK}:{self._port}", f"localhost:{self._port}"


ALLOWED = "a server that answers, and a login in the browser"


async def log_in(
    name: str,
    config: ServerConfig,
    home: Path,
    environment: Mapping[str, str],
    opened: Callable[[str], Awaitable[None]],
    seconds: float,
) -> tuple[str, int]:
    """Begin a new login; return (its storage, the number of the server's tools). ``opened`` receives the
    login address, and the person has ``seconds``. Raises ``ConfigError``."""
    assert config.oauth is not None
    try:
        endpoint = endpoint_of(config, Path.cwd(), environment)
    except Unset as error:
        raise ConfigError(str(error), None, ALLOWED) from None
    login = Login(home, name, endpoint.url)
    log = ServerLog(home / LOGS / f"mcp-{name}.log", endpoint.secrets)
    page = LoginPage(endpoint.url, config.oauth, endpoint.client_secret, login, opened)
    async with page as auth:
        most = Mcp().max_message_bytes
        connection = Connection(endpoint, log, most, lambda: None, asks=False, auth=auth)
        try:
            async with asyncio.timeout(seconds):
                await connection.open()
                tools = await connection.tools()
        except TimeoutError:
            raise ConfigError(f"the login took more than {seconds:g} s", name, ALLOWED) from None
        except (Broken, McpRefused, Unusable, OSError) as error:
            raise ConfigError(f"no login to {name}: {mask(str(error))}", None, ALLOWED) from None
        finally:
            await connection.close()
    if not page.where:
        raise ConfigError("the server wanted no login", name, "a server with logins, or oauth = false")
    return page.where, len(tools)
