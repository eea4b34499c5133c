"""Runs `spotelastic run` as `python -m spotelastic.run`, for tools that start a module by name."""

import sys

if __name__ == "__main__":
    from spotelastic_checkpoints.isolated import leave_working_folder

    leave_working_folder()
    from spotelastic.cli.main import main

    sys.argv.insert(1, "run")
    main()
