"""The agent behind HTTP, for programs and browsers: a server, and a door for each foreign protocol.

``doors`` defines a door and lists those of this package; ``keys`` holds permissions; ``app`` is the web
application with the doors. Sessions and turns are run by ``fsm_agent.dispatch.service``. See
docs/serve.md."""
