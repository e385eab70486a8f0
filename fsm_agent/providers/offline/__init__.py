"""``offline:demo``: a stand-in for a model that works by rule, without a key and without a network."""

from fsm_agent.providers.offline.demo import NO_MODEL, OfflineDemo

__all__ = ["NO_MODEL", "OfflineDemo"]
