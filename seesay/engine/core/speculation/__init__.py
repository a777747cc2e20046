"""Proposes tokens that the model checks in one step."""

from __future__ import annotations
