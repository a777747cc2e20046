"""The parser and the options that several commands share."""

from __future__ import annotations
