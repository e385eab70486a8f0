"""Where all is put together: the turn with the machine, an agent with its services, children, what performs
requests."""
