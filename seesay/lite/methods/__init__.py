"""The methods of quantization, and the changes to a layer that they are made of."""

from __future__ import annotations
