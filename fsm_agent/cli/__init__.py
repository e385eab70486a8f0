"""The command line. Nothing of it is loaded by ``import fsm_agent``."""

from fsm_agent.cli.entry import main

__all__ = ["main"]
