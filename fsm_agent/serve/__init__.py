"""The agent behind HTTP, for programs and browsers: a server, and a door for each protocol of others.

``doors`` says what a door is, and which ones there are; ``keys`` says who may do what; ``app`` is the web
application that has the doors. What they do with sessions and turns is ``fsm_agent.dispatch.service``'s. See
docs/serve.md."""
