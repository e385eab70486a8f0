"""What a running turn meets: ports, callbacks and events, budgets, its inbox, and what carries no
authority."""
