"""The app of the workers in compose.yaml. Put your model and your tools here."""

from fsm_agent import Agent, tool


@tool(effect="pure")
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def make_agent() -> Agent:
    """The agent of one turn; called once for each. It needs no home and no session: the worker gives both."""
    return Agent("offline:demo", tools=[word_count], toolsets=["core"])
