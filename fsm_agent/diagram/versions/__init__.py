"""Two versions of a table: how they are loaded, what changed between them, and how that is shown."""

from __future__ import annotations
