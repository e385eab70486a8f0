"""Features of an agent, each an ``Extension`` in a module of its own. The keywords of ``Agent`` make the list
of them (``composition/agent_factory.py``); who writes an extension of their own finds models of one here."""
