"""`python -m spotelastic` is the `spotelastic` command."""

from spotelastic.cli.main import main

main()
