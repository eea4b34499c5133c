"""Numbers of things, as people write them."""


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `0 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
