"""Commands about models: which there are, whether and where one runs, quantized copies."""

from __future__ import annotations
