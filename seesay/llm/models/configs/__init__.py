"""From a published configuration to that of a decoder: the kinds of models, and what differs in each."""

from __future__ import annotations
