"""Providers: profiles as data, the choice of a provider, and a port for each wire. Loads no SDK."""
