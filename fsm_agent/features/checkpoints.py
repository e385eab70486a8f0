"""The feature ``checkpoints``: keeps the files of the working directory before a tool changes them."""

from __future__ import annotations

import asyncio
from functools import partial

from fsm_agent.conversation.effects import FilesKept, KeepFiles
from fsm_agent.errors import StoreError
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features.ground import Ground
from fsm_agent.sessions.checkpoints import Checkpoints


class FileCheckpoints(Extension):
    """Of one agent. What is too much to be kept is reported by the turn; where there is never a checkpoint,
    ``doctor`` says it."""

    name = "checkpoints"

    def __init__(self, ground: Ground) -> None:
        self.checkpoints = Checkpoints(ground.home, ground.workdir, ground.settings.checkpoints)

    def in_turn(self, here: Here) -> Part:
        return Part({KeepFiles: partial(self._keep, here)})

    async def _keep(self, here: Here, request: KeepFiles) -> FilesKept:
        if why := self.checkpoints.trouble:
            return FilesKept(problem=why)
        about = {"session": here.session.id, "turn": here.fence.turn_id}
        try:
            made = await asyncio.to_thread(self.checkpoints.make, request.key, tool=request.tool, **about)
        except StoreError as error:
            here.tell(f"no checkpoint of the files before {request.tool}, which runs all the same: {error}")
            return FilesKept(problem=str(error))
        return FilesKept(made.id)
