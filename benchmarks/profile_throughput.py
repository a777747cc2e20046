"""LMDeploy's name for `seesay bench throughput`, whose options it takes."""

import sys

from seesay.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "throughput", *sys.argv[1:]]))
