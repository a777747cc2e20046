"""`python -m seesay.vl.check_family NAME --checkpoint FOLDER`: checks a model family. See `seesay.contract`."""

from __future__ import annotations

import sys

from seesay.contract.command import main

if __name__ == "__main__":
    sys.exit(main())
