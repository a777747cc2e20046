"""Options from environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings from environment variables. Each is read once, where it is needed."""

    log_level: str = "WARNING"

    @classmethod
    def from_env(cls) -> Settings:
        return cls(log_level=os.environ.get("SEESAY_LOG_LEVEL", "WARNING").upper())
