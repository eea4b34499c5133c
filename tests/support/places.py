"""Where things of the tests lie."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "scripts"
"""Training scripts that run as processes of their own."""
EXAMPLES = TESTS.parent / "examples"
