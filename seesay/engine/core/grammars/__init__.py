"""The rules that answers follow, while they are computed: masks of rows, forced tokens."""

from __future__ import annotations
