"""Checkpoints: what the files of a working directory were before a turn's tools changed them, to be put back.

They are commits of a git repository of our own, in the home; the user's own repository is never touched, and
nothing that it says is run. (Why: decision 92.)"""

from fsm_agent.sessions.checkpoints.checkpoints import FOLDER, Checkpoint, Checkpoints, PutBack

__all__ = ["FOLDER", "Checkpoint", "Checkpoints", "PutBack"]
