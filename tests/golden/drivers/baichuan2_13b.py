"""Baichuan 2 of 13B, which has ALiBi and a head of rows of unit length."""

from __future__ import annotations

from golden.drivers.baichuan2 import CASES, FILES, TRANSFORMERS, load, run

__all__ = ["CASES", "FILES", "MODEL", "TRANSFORMERS", "load", "run"]
MODEL = "baichuan-inc/Baichuan2-13B-Chat"
