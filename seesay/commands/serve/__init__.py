"""`seesay serve …`."""

from __future__ import annotations
