"""`seesay bench …` and `seesay replay`."""

from __future__ import annotations
