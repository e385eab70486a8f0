"""Doors: the protocols that the server speaks, each an extension with its own addresses.

A door translates between its protocol and the service, and has no logic of its own. Doors of this package are
open if the libraries that they need are installed. A door of another package is an installed extension, and
is open if the settings name it. The settings of each are in ``[settings.extensions.NAME]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from fsm_agent.errors import ConfigError
from fsm_agent.extension import DOORS, Extension, extensions_of, load_extension
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.support.installation import install_command

if TYPE_CHECKING:
    from starlette.routing import Route

    from fsm_agent.dispatch.service import SessionService


class Door(Extension):
    """One protocol of a server. In addition to the members of an extension (``name``, ``settings``, ``kept``,
    ``checks``, ``aclose``), ``public`` lists path prefixes whose files need no key, such as those of a page.

    Handlers read with ``caller_of`` and ``json_body``, return streams as ``EventStream``, and raise
    ``ServiceError``; ``route`` answers exceptions in the form of the protocol (``fsm_agent.serve.web``)."""

    public: ClassVar[Sequence[str]] = ()

    def routes(self, service: SessionService) -> Sequence[Route]:
        """Return the routes; called once, before the server starts."""
        raise NotImplementedError

    def running(self) -> AbstractAsyncContextManager[Any]:
        """Return a context manager around the time in which requests arrive, for background work."""
        return nullcontext()


class Doors(NamedTuple):
    """The ``open`` doors and, by name, the command that would open each ``closed`` one of this package."""

    open: Sequence[Door]
    closed: Mapping[str, str]


def built_in_doors() -> Doors:
    """Return the doors of this package; those without their libraries are closed."""
    doors, closed = list[Door](), dict[str, str]()
    for name, (where, extra) in DOORS.items():
        module, _, kind = where.partition(":")
        try:
            doors.append(getattr(import_module(module), kind)())
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "fsm_agent":
                raise
            closed[name] = install_command(extra)
    return Doors(doors, closed)


def doors_of(settings: Mapping[str, Mapping[str, Any]], kept: KeptValues) -> Doors:
    """Return the doors of a server. ``settings``: those of extensions, by name; ``kept``: the values in its
    store. Raises ``ConfigError`` with the name of a door that cannot be used."""
    own = built_in_doors()
    named = {
        name: given
        for name, given in settings.items()
        if name in DOORS or issubclass(load_extension(name), Door)
    }
    found = extensions_of(own.open, named, kept)
    return Doors([one for one in found if isinstance(one, Door)], own.closed)


def routes_of(doors: Sequence[Door], service: SessionService) -> list[Route]:
    """Return the routes of all doors. Raises ``ConfigError`` for an address that two of them share."""
    routes, taken = list[Any](), dict[str, str]()
    for door in doors:
        for one in door.routes(service):
            if (other := taken.setdefault(one.path, door.name)) != door.name:
                raise ConfigError(f"the doors {other} and {door.name} have the same address", one.path)
            routes.append(one)
    return routes
