"""Features of an agent, each an ``Extension`` in its own module, and models for extensions of your own.

The keywords of ``Agent`` build the list of features in a fixed order (``built_in.py``): telemetry, limits,
your extensions, callbacks, hooks, context engine, memory, checkpoints, background tasks. Their layers are in
this order in the pipeline, which decides in one place which of two layers sees an answer first. An agent
loads telemetry, limits, hooks, a context engine, memory, and the type of an answer only if it has them.

Each feature is made from a ``Ground``: the options of the agent, and what all its turns share.
``children.py`` and ``handoffs.py`` make other agents from the options of this one.

In each turn an extension has a ``Part``: the requests that it performs, its layers, the ``Checks`` that
states make because of it, what the turn starts with (``Opened``), what it follows, and what it does at
the beginning and the end. The table of handlers is built from the parts; the core in
``composition/effect_handler.py`` keeps model, tools, approvals, clock, and store. A handler is a bound
method, so a request has the same number of frames as before. The type of an answer is a part without an
extension, because each turn may have another type.

A feature is above what it uses. The class for a user (``hooks.py``, ``memory.py``,
``sessions/checkpoints.py``) stays in its room, which the command line and ``doctor`` know without an
agent; the extension is here.

Some features are not extensions: approvals, because admitting and running a call are one decision of the
core; handoffs and children, which are ways to make a turn; skills and MCP servers, which are sources of
tools.

States yield requests of extensions at named points (``AskExtension``), as data: a type of request that an
extension brings would need a codec in the journal, and all that lists every request would have to know it.
"""
