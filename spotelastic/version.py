"""The version of spotelastic. It stands here only: the build, the command line and the docs read it."""

__version__ = "0.1.0"
