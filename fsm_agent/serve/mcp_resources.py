"""The sessions of a key as resources of our MCP server: ``session://ID`` is its transcript as JSON."""

from __future__ import annotations

from mcp_types import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from fsm_agent.serve.service import Caller, NotFound, SessionService
from fsm_agent.serve.web import to_json

SCHEME = "session://"
JSON = "application/json"
TEMPLATES = ListResourceTemplatesResult(
    resource_templates=[
        ResourceTemplate(
            name="session",
            uri_template=f"{SCHEME}{{session}}",
            description="The messages and turns of a session of yours",
            mime_type=JSON,
        )
    ]
)


def list_sessions(service: SessionService, caller: Caller) -> ListResourcesResult:
    """Return the caller's sessions, those that were used last first. Raises ``ServiceError``."""
    found = [
        Resource(
            name=one["session"], title=one["title"] or None, uri=f"{SCHEME}{one['session']}", mime_type=JSON
        )
        for one in service.sessions(caller)
    ]
    return ListResourcesResult(resources=found)


def read_session(service: SessionService, caller: Caller, uri: str) -> ReadResourceResult:
    """Return a session of the caller's. Raises ``ServiceError``."""
    scheme, _, session = uri.partition("://")
    if f"{scheme}://" != SCHEME or not session:
        raise NotFound("no such resource")
    text = to_json(service.load(caller, session))
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=JSON, text=text)])
