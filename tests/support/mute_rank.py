"""A rank that never says a word."""

from __future__ import annotations

import time

if __name__ == "__main__":
    time.sleep(600)
