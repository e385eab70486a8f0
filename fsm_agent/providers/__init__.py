"""Providers: profiles as data, the choice of one, and a port for each wire. Importing this loads no SDK."""
