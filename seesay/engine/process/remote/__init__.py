"""The frontend's half of a core in another process: what it sends and hears, and when that process is started again."""

from __future__ import annotations
