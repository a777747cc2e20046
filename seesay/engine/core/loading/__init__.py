"""Builds a core: its options are settled, its model is loaded, its memory is divided."""

from __future__ import annotations
