"""LMDeploy's name for `seesay bench serve`, whose options it takes."""

import sys

from seesay.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "serve", *sys.argv[1:]]))
