"""The agent in an editor: a server of the Agent Client Protocol. See ``docs/acp.md``.

``server`` answers what an editor asks, ``session`` is one conversation of it. ``told`` makes updates of what
the callbacks tell and asks the person, ``calls`` says what an editor is shown of a call, ``words`` reads
prompts, replays transcripts and names the ends of turns. Needs the extra ``acp``."""

from __future__ import annotations

from fsm_agent.acp.server import EditorHost, EditorServer, serve_stdio
from fsm_agent.acp.updates import EditorView

__all__ = ["EditorHost", "EditorServer", "EditorView", "serve_stdio"]
