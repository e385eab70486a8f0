"""``Pipeline``: how a request of a state becomes a reply.

Theory of operation
-------------------
A state yields a request; the runner asks the journal whether the reply is known, and hands the request to
the turn's pipeline if it is not. A pipeline is a list of layers around one handler for each type of request.
A layer is a coroutine function ``around(request, turn, call_next)``: it may look at the request, pass on
another one, change the reply, or answer in the place of everything below it. The first of the list is
outermost.

    >>> print(pipeline)
    1. telemetry: every request
    2. approvals: AskApproval
    3. debugger: every request
    4. handler

A layer that cares for a few types of requests names them. The way of a type is composed when its first
request comes, out of the layers that care for it, and looked up from then on: a request that no layer cares
for costs one look into a dict, and ``Pipeline`` itself leaves no frame on the stack of what it performs.

Layers may come and go while the turn runs, such as that of a debugger; the next request goes the new way. The
place of a layer is fixed by who composes the list: ``put`` takes the place of the layer of the same name.

The journal is no layer. It is asked once for all requests that a state yields together, so that one write to
the disk covers their intents, and it knows a request by its place in the visit, which a layer does not see.
(Why: decision 113.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

Perform = Callable[[Any], Awaitable[Any]]
"""Takes a request; what it returns is awaited for the reply."""
Around = Callable[[Any, Any, Perform], Awaitable[Any]]
"""``async def around(request, turn, call_next)``."""


@dataclass(frozen=True, slots=True)
class Layer:
    """``requests``: the types of requests that it is for, as a collection or as a function that knows them,
    which is named in the list; ``None`` for all."""

    name: str
    around: Around
    requests: Collection[type] | Callable[[type], bool] | None = None

    def cares_for(self, kind: type) -> bool:
        """Is the layer for requests of this type?"""
        if self.requests is None:
            return True
        return self.requests(kind) if callable(self.requests) else kind in self.requests

    def __str__(self) -> str:
        if self.requests is None:
            return f"{self.name}: every request"
        if callable(self.requests):
            return f"{self.name}: {self.requests.__name__}"
        return f"{self.name}: {', '.join(sorted(kind.__name__ for kind in self.requests))}"


class Pipeline:
    """The layers of one turn around what performs its requests. ``handler_of`` returns the handler for a type
    of requests, and raises ``LookupError`` for a type that nothing handles."""

    def __init__(
        self, turn: Any, handler_of: Callable[[type], Perform], layers: Sequence[Layer] = ()
    ) -> None:
        self._turn, self._handler_of = turn, handler_of
        self.layers = tuple(layers)
        self._ways: dict[type, Perform] = {}

    def __call__(self, request: Any) -> Awaitable[Any]:
        way = self._ways.get(kind := type(request))
        return (way or self._compose(kind))(request)

    def put(self, layer: Layer) -> None:
        """Let ``layer`` take the place of the one of its name; the next request goes by way of it. Safe from
        any thread."""
        self.layers = tuple(layer if one.name == layer.name else one for one in self.layers)
        self._ways = {}

    def _compose(self, kind: type) -> Perform:
        ways, way = self._ways, self._handler(kind)
        for layer in reversed(self.layers):
            if layer.cares_for(kind):
                way = _inside(layer.around, self._turn, way)
        ways[kind] = way  # of before ``put`` emptied them, if it did meanwhile
        return way

    def _handler(self, kind: type) -> Perform:
        try:
            return self._handler_of(kind)
        except LookupError:  # a layer may answer it; else the error is raised
            return lambda request: self._handler_of(kind)(request)

    def __str__(self) -> str:
        names = [*map(str, self.layers), "handler"]
        return "\n".join(f"{number}. {name}" for number, name in enumerate(names, 1))


def _inside(around: Around, turn: Any, call_next: Perform) -> Perform:
    def perform(request: Any) -> Awaitable[Any]:  # returns what is awaited: no frame stays of it
        return around(request, turn, call_next)

    return perform
