"""The debugger's face for editors: a server of the Debug Adapter Protocol. See ``docs/debugger-editors.md``.

``server`` takes a connection, ``framing`` reads messages from it, ``session`` answers them; ``tablemap`` knows what each line of
the table and of the states means, ``points`` makes breakpoints of it, ``lanes`` are turns as threads, ``frames``, ``values`` and
``words`` show them, ``console`` and ``edits`` change them.
"""

from __future__ import annotations

from fsm_agent.debug.dap.options import Options
from fsm_agent.debug.dap.server import serve_port, serve_stdio, talk

__all__ = ["Options", "serve_port", "serve_stdio", "talk"]
