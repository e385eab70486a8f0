"""A model that answers from a script: for tests, for scripts given as files, and for
``fsm_agent.testing``."""
