"""What our MCP server has besides tools: the sessions of a key as resources, each ``session://ID`` with its
transcript as JSON, and the skills of the agent as prompts."""

from __future__ import annotations

from mcp_types import (
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)

from fsm_agent.dispatch.service import BadRequest, Caller, NotFound, SessionService
from fsm_agent.serve.web import to_json
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets.memory import SkillShelf

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


TASK = PromptArgument(name="task", description="What to use the skill for", required=False)


def list_skills(shelf: SkillShelf) -> ListPromptsResult:
    """Return the skills as prompts."""
    return ListPromptsResult(
        prompts=[
            Prompt(name=one.name, description=one.description, arguments=[TASK]) for one in shelf.skills()
        ]
    )


def read_skill(shelf: SkillShelf, params: GetPromptRequestParams) -> GetPromptResult:
    """Return a skill as the message of a user. Raises ``BadRequest``."""
    given = dict(params.arguments or {})
    task = given.pop(TASK.name, "")
    if given:
        raise BadRequest(f"a skill has no argument {min(given)[:40]!r}; allowed: {TASK.name}")
    try:
        words = shelf.skill_view(params.name)
    except ToolFailure as error:
        raise BadRequest(str(error)) from None
    content = TextContent(type="text", text=f"{words}\n\n{task}" if task else words)
    return GetPromptResult(messages=[PromptMessage(role="user", content=content)])
