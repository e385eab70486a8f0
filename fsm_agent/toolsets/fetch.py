"""Fetches one page over HTTP with bounds on time, size and redirects; every hop is checked."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

from fsm_agent.settings.model import Web
from fsm_agent.tools import ToolFailure

if TYPE_CHECKING:
    import httpx2


# Addresses that a model may reach: public ones, and private ones that the user names.


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host and port to addresses, as text, the best first. Raises ``OSError``."""

_NEVER_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for line in (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24",
        "192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24",
        "224.0.0.0/3",  # multicast and reserved
        "168.63.129.16/32",  # the host agent of a large cloud, on a public number
        "::/128 ::1/128 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 3fff::/20 5f00::/16",
        "fc00::/7 fe80::/10 fec0::/10 ff00::/8",
    )
    for network in line.split()
)
"""IANA's special-address registries, spelled out because the standard library's lists differ by version."""
_GIVEN_OUT = ipaddress.IPv6Network("2000::/3")
"""The allocated part of IPv6; the rest has no meaning yet."""
_CARRIES_V4 = tuple(
    (ipaddress.IPv6Network(network), shift)
    for network, shift in (
        ("::ffff:0:0/96", 0),
        ("::ffff:0:0:0/96", 0),
        ("::/96", 0),
        ("64:ff9b::/96", 0),
        ("2002::/16", 80),
    )
)
"""IPv6 networks that embed IPv4 addresses, and the position of those in bits from the right."""


def is_public(address: Address) -> bool:
    """Say whether an address is public. An IPv6 address that embeds an IPv4 address counts as that."""
    if any(address.version == network.version and address in network for network in _NEVER_PUBLIC):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        for network, shift in _CARRIES_V4:
            if address in network:
                return is_public(ipaddress.IPv4Address(int(address) >> shift & 0xFFFFFFFF))
        return address in _GIVEN_OUT
    return True


def named(host: str, names: Sequence[str]) -> bool:
    """Say whether the host is among these names. ``*.example.org`` matches every host below it."""
    host = _plain(host)
    return any(
        host == _plain(name) or (name.startswith("*.") and host.endswith(_plain(name[1:]))) for name in names
    )


async def reachable(host: str, port: int, private: Sequence[str], resolve: Resolve) -> list[str]:
    """Return the addresses to connect to, each checked. Connecting to exactly these prevents DNS rebinding.
    Raises ``ToolFailure``."""
    try:
        found = list(await resolve(host, port))
    except (OSError, UnicodeError) as error:
        raise ToolFailure(
            f"{host}: no address found ({getattr(error, 'strerror', None) or error})."
        ) from None
    if not found:
        raise ToolFailure(f"{host}: no address found.")
    if named(host, private):
        return found
    for text in found:
        if not is_public(_address(text)):
            raise ToolFailure(
                f"{host}: leads to {text}, which is not a public address. Such addresses are not fetched."
            )
    return found


async def resolve_by_system(host: str, port: int) -> list[str]:
    """Resolve with the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _address(text: str) -> Address:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise ToolFailure(f"{text!r} is not an address.") from None


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


MAX_REDIRECTS = 5
MAX_ADDRESS = 2_000
"""Maximum characters of an address; longer ones carry data instead of naming a page."""
CONNECT = 10.0
"""Seconds to connect."""
_MOVED = frozenset((301, 302, 303, 307, 308))
_HEADERS = {
    "User-Agent": "fsm-agent",
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1",
    "Accept-Encoding": "gzip, deflate",  # what a bounded body unpacks
}


@dataclass(frozen=True, slots=True)
class Fetched:
    """``address``: the final one. ``body`` is decompressed; ``cut``: it was truncated."""

    address: str
    status: int
    reason: str
    content_type: str
    body: bytes
    cut: bool


class Fetcher:
    """Fetches pages within ``settings``. ``resolve`` and ``tls`` are ports for tests."""

    def __init__(
        self,
        settings: Web,
        resolve: Resolve = resolve_by_system,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.settings, self.resolve, self.tls = settings, resolve, tls

    async def fetch(self, address: str) -> Fetched:
        """Fetch the page. Raises ``ToolFailure`` if that fails for any reason."""
        import httpx2

        try:
            async with asyncio.timeout(self.settings.timeout):
                return await self._fetch(address)
        except TimeoutError:
            raise ToolFailure(
                f"{address}: no whole answer within {self.settings.timeout:g} seconds."
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ssl.SSLError) as error:
            raise ToolFailure(f"{address}: {type(error).__name__}: {error}".rstrip(": ")) from None

    async def _fetch(self, address: str) -> Fetched:
        import httpx2

        from fsm_agent.providers.sdk_port import (
            tls,
        )  # kept for the whole process: reading the certificates takes a while

        verify = self.tls() if self.tls else tls()
        timeout = httpx2.Timeout(self.settings.timeout, connect=CONNECT)
        # No proxy from the environment: it would resolve names itself and bypass the checks. No cookies:
        # they would belong to an address, which several hosts may share.
        nobody = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        async with httpx2.AsyncClient(
            verify=verify, trust_env=False, timeout=timeout, follow_redirects=False, cookies=nobody
        ) as client:
            for _ in range(MAX_REDIRECTS + 1):
                url = self._check_url(address)
                response = await self._send(client, url)
                try:
                    target = response.headers.get("location")
                    if response.status_code not in _MOVED or not target:
                        return await self._read(response, str(url))
                finally:
                    await response.aclose()
                address = str(url.join(target))
        raise ToolFailure(f"{address}: more than {MAX_REDIRECTS} redirects.")

    def _check_url(self, address: str) -> httpx2.URL:
        import httpx2

        if len(address) > MAX_ADDRESS:
            raise ToolFailure(f"The address is longer than {MAX_ADDRESS:,} characters.")
        url = httpx2.URL(address.strip())
        if url.scheme not in ("http", "https"):
            raise ToolFailure(f"{address}: only http and https addresses are fetched.")
        if not url.host:
            raise ToolFailure(f"{address}: names no host.")
        if url.userinfo:
            raise ToolFailure("Addresses with a user name or password are not fetched.")
        if self.settings.only_hosts and not named(url.host, self.settings.only_hosts):
            raise ToolFailure(
                f"{url.host}: not among the hosts that may be fetched"
                f" ({', '.join(self.settings.only_hosts)})."
            )
        return url.copy_with(fragment=None)

    async def _send(self, client: httpx2.AsyncClient, url: httpx2.URL) -> httpx2.Response:
        """Send to the host's checked addresses in turn until one accepts the connection."""
        import httpx2

        port = url.port or (443 if url.scheme == "https" else 80)
        name, host = url.raw_host.decode("ascii"), url.netloc.decode("ascii")
        found = await reachable(name, port, self.settings.allow_private_hosts, self.resolve)
        for number, place in enumerate(found, start=1):
            request = client.build_request(
                "GET",
                url.copy_with(host=place.partition("%")[0]),
                headers={**_HEADERS, "Host": host},
                extensions={"sni_hostname": name},
            )
            try:
                return await client.send(request, stream=True)
            except httpx2.ConnectError:
                if number == len(found):
                    raise
        raise AssertionError("a host without addresses is not reachable")

    async def _read(self, response: httpx2.Response, address: str) -> Fetched:
        from fsm_agent.providers.transport import BadBody, BoundedBody

        body, limit = bytearray(), self.settings.max_bytes
        try:
            async for piece in BoundedBody(response, sys.maxsize):
                body += piece
                if len(body) > limit:
                    break
        except BadBody as error:
            raise ToolFailure(f"{address}: {error}.") from None
        kind = response.headers.get("content-type", "")
        return Fetched(
            address,
            response.status_code,
            response.reason_phrase,
            kind,
            bytes(body[:limit]),
            len(body) > limit,
        )
