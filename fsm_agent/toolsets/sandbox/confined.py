"""Tools that say where their commands run."""

from __future__ import annotations

from dataclasses import replace

from fsm_agent.conversation.confinement import LEAVES
from fsm_agent.tools import Tool
from fsm_agent.toolsets.sandbox.place import CommandPlace

RUNS = (
    "It runs {inside}: of the machine's files it can change those below the working directory, without"
    " Git's own and those that run or instruct programs later, and the home is hidden."
)
LEAVING = f" What cannot work there can be run with {LEAVES}=true; the user is asked then."


def confined(made: Tool, place: CommandPlace) -> Tool:
    """The tool with what the model has to know of the place; without a sandbox nothing can be left."""
    properties = dict(made.spec.parameters["properties"])
    if place.confinement is None:
        properties.pop(LEAVES, None)
        return replace(
            made, spec=replace(made.spec, parameters={**made.spec.parameters, "properties": properties})
        )
    words = RUNS.format(inside=place.confinement.inside) + (LEAVING if LEAVES in properties else "")
    description = f"{made.spec.description}\n\n{words}"
    return replace(made, spec=replace(made.spec, description=description), confinement=place.confinement)
