"""A proxy that is asked for a tunnel and never answers: no request to anybody behind it can ever leave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

BEHIND = "https://model.test/v1"
"""An address that is reached through the proxy."""


@contextmanager
def deaf_proxy(asked: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment names it. ``asked`` is called, in a thread, whenever a client has asked for a
    tunnel."""
    with socket.create_server(("127.0.0.1", 0)) as listener, monkeypatch.context() as environment:
        environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
        for name in ("https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
            environment.delenv(name, raising=False)
        thread = threading.Thread(target=_listen, args=(listener, asked))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
            thread.join()


def _listen(listener: socket.socket, asked: Callable[[], object]) -> None:
    clients: list[socket.socket] = []
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # it was shut down
            break
        clients.append(client)
        if client.recv(65_536).startswith(b"CONNECT model.test:443 "):
            asked()
    for client in clients:
        client.close()
