"""Layers that mix the positions of a text: attention of several kinds, layers with states."""

from __future__ import annotations
