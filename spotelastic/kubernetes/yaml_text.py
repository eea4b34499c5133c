"""Reads and writes YAML, with the library that comes with the extra `kubernetes`."""

from collections.abc import Mapping, Sequence
from typing import Any

from spotelastic.errors import EnvironmentFailure


def yaml_text(manifest: Mapping[str, Any], heading: Sequence[str] = ()) -> str:
    """Return a manifest below comments."""
    above = "".join(f"# {line}\n" for line in heading)
    return above + str(_yaml().safe_dump(manifest, sort_keys=False, width=96))


def read(text: str) -> Any:
    """Return what YAML holds, or JSON, which is YAML. Raises `ValueError`."""
    yaml = _yaml()
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise EnvironmentFailure(
            "YAML needs the extra `kubernetes`: pip install 'spotelastic[kubernetes]'"
        ) from error
    return yaml
