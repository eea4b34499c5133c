"""Renders the exceptions of spotelastic and their exit codes."""

from collections.abc import Iterator

from spotelastic import errors


def table() -> str:
    """One line for each class, in the order of the file."""
    lines = ["| exception | exit code | raised where |", "|---|---|---|"]
    for each in _classes():
        first = (each.__doc__ or "").split("\n\n", 1)[0].replace("\n", " ")
        lines.append(f"| `{each.__name__}` | {each.exit_code} | {first} |")
    return "\n".join(lines) + "\n"


def _classes() -> Iterator[type[errors.SpotelasticError]]:
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.SpotelasticError):
            yield each
