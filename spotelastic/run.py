"""`python -m spotelastic.run` is `spotelastic run`, for commands that name a module."""

import sys

if __name__ == "__main__":
    from spotelastic_checkpoints.isolated import leave_working_folder

    leave_working_folder()
    from spotelastic.cli.main import main

    sys.argv.insert(1, "run")
    main()
