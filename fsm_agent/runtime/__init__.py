"""What a running turn meets: ports, callbacks and events, time, and budgets."""
