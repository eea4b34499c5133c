"""The local cloud as AWS on a bad day: it refuses, answers from the past, and takes its time."""

from pathlib import Path

UNKIND = str(Path(__file__).with_name("program.py"))
"""The program that runs such a cloud, for `SPOTELASTIC_LOCAL_PROGRAM`."""
