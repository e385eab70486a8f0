"""The debugger's face for editors: a server of the Debug Adapter Protocol. See ``docs/debugger-editors.md``.

``server`` takes a connection, ``protocol`` reads messages from it, ``session`` answers them: by ``requests``
and ``console``, which work on its ``context``; ``events`` tells what happens unasked. ``table_map`` knows
what each line of the table and of the states means, ``breakpoints`` makes breakpoints of it; ``threads``,
``variables`` and ``expressions`` show turns and change them."""

from __future__ import annotations

from fsm_agent.debug.dap.context import LaunchOptions
from fsm_agent.debug.dap.session import serve_port, serve_stdio, talk

__all__ = ["LaunchOptions", "serve_port", "serve_stdio", "talk"]
