"""Which addresses of the network a model may reach: public ones, and private ones that the user has named."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from fsm_agent.tools import ToolFailure

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host for a port, as text, the best first. Raises ``OSError``."""

_NEVER_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        *(
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
        ),
        *(
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
        ),
        *(
            "224.0.0.0/3",
            "168.63.129.16/32",
        ),  # multicast and reserved; the host agent of a large cloud, on a public number
        *(
            "::/128",
            "::1/128",
            "64:ff9b:1::/48",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
            "5f00::/16",
            "fc00::/7",
            "fe80::/10",
        ),
        *("fec0::/10", "ff00::/8"),
    )
)
"""The registries of special addresses of IANA, written out: what the standard library says of them differs by
version."""
_GIVEN_OUT = ipaddress.IPv6Network("2000::/3")
"""All that is given out of IPv6; what is not means nothing, or something that nobody has heard of yet."""
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
"""Networks whose addresses stand for IPv4 ones, and how many bits from the right those begin."""


def is_public(address: Address) -> bool:
    """May anybody reach it, and is it nobody's own network? An IPv6 address that stands for an IPv4 one
    counts as that."""
    if any(address.version == network.version and address in network for network in _NEVER_PUBLIC):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        for network, shift in _CARRIES_V4:
            if address in network:
                return is_public(ipaddress.IPv4Address(int(address) >> shift & 0xFFFFFFFF))
        return address in _GIVEN_OUT
    return True


def named(host: str, names: Sequence[str]) -> bool:
    """Is the host among these names? ``*.example.org`` means every host below it."""
    host = _plain(host)
    return any(
        host == _plain(name) or (name.startswith("*.") and host.endswith(_plain(name[1:]))) for name in names
    )


async def reachable(host: str, port: int, private: Sequence[str], resolve: Resolve) -> list[str]:
    """The addresses to connect to, each of them checked. Resolving once and connecting to these very
    addresses leaves a name that changes its meaning in between no chance. Raises ``ToolFailure``."""
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
    """The system's own resolver."""
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
