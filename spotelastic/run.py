"""`python -m spotelastic.run` is `spotelastic run`, for commands that name a module."""

import sys

from spotelastic.cli.main import main

if __name__ == "__main__":
    sys.argv.insert(1, "run")
    main()
