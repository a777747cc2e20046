"""LoRA adapters of a decoder: read from their folders, kept on the device, applied to its ends."""

from __future__ import annotations
