"""`python -m seesay` is the `seesay` command."""

from __future__ import annotations

import sys

from seesay.cli import main

if __name__ == "__main__":
    sys.exit(main())
