"""LMDeploy's name for `seesay bench latency`, whose options it takes."""

import sys

from seesay.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "latency", *sys.argv[1:]]))
