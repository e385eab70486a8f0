"""The debugger's page: a Starlette application over ``fsm_agent.debug``, for one person on this machine."""
