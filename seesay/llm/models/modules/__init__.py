"""Models without a decoder of ours, computed by their modules of Transformers."""

from __future__ import annotations
