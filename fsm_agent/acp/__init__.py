"""The agent in an editor: a server of the Agent Client Protocol. See ``docs/acp.md``.

``server`` answers an editor and holds its conversations, ``updates`` turns callbacks into updates, asks the
person, shows calls, reads prompts, and replays transcripts. Needs the extra ``acp``."""

from __future__ import annotations

from fsm_agent.acp.server import EditorHost, EditorServer, serve_stdio
from fsm_agent.acp.updates import EditorView

__all__ = ["EditorHost", "EditorServer", "EditorView", "serve_stdio"]
