"""Commands that read files and write files of answers."""

from __future__ import annotations
