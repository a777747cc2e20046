"""The `seesay` command, also as `python -m seesay`. Ends quietly on Ctrl-C, even while modules are imported: up to here
nothing is imported that takes time."""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command line and return the exit status."""
    try:
        _open_streams()
        from seesay import cli

        return cli.main()
    except KeyboardInterrupt:
        print("\nseesay: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _open_streams() -> None:
    """Replace standard streams that the caller has closed (`seesay list >&-`): what is written to them is lost."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - pathlib takes time to import
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


if __name__ == "__main__":
    sys.exit(main())
