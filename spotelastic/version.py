"""The version of spotelastic, in one place: the build, the command line and the docs read it."""

__version__ = "0.1.0"
