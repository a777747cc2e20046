"""Anthropic's messages API."""

from __future__ import annotations
