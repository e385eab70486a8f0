"""An agent behind protocols of others: one service of sessions and turns, and a door for each protocol.

``service`` is what every door does with sessions and turns, in this process or with workers; ``live`` keeps
what happens in the turns of this process, for clients that drop and come back; ``keys`` says who may do what;
``app`` is the web application that has the doors. See docs/serve.md."""
