"""`seesay chat`, and the terminal and loop that it shares with the client of a server."""

from __future__ import annotations
