"""The composition root: the turn with its machine, an agent with its services, child agents, the effect
handler."""
