"""Runs the `spotelastic` command as `python -m spotelastic`."""

if __name__ == "__main__":
    from spotelastic_checkpoints.isolated import leave_working_folder

    leave_working_folder()
    from spotelastic.cli.main import main

    main()
