"""The `seesay` command, also as `python -m seesay`. Ends quietly on Ctrl-C, even while modules are imported."""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command line and return the exit status."""
    try:
        from seesay import cli

        return cli.main()
    except KeyboardInterrupt:
        print("\nseesay: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
