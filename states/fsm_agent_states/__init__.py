"""The turn of this agent: the transition table, ``TurnState``, and one short file for each of the eight
states.

Nothing here touches the network, the disk, a clock or a random generator. A state is a generator that yields
requests, receives their replies, and reports one event; the table decides where the turn goes next.
"""
