"""Asks the user on the terminal before something is changed or paid for.

Without a terminal the command refuses, unless `--yes` was given; only a price is then accepted.
"""

import sys
from collections.abc import Callable
from functools import partial

from spotelastic.client.confirmation import Confirm, ConfirmationRequest, agreed
from spotelastic.errors import NotConfirmed
from spotelastic.wrapping import wrapped

YES = frozenset({"y", "yes"})
SHOWN, HIDDEN = "\x1b[?25h", "\x1b[?25l"
"""Terminal sequences that show and hide the cursor."""


def asking(*, yes: bool, before_price: Callable[[], None] = lambda: None) -> Confirm:
    """Return the answers of this command: `yes` to everything, or what the user types.

    `before_price` shows what the price is for.
    """
    return agreed if yes else partial(_on_terminal, before_price)


def somebody_is_there() -> bool:
    """Whether a user can be asked: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _on_terminal(before_price: Callable[[], None], request: ConfirmationRequest) -> bool:
    """Return whether the user types yes. Raises `NotConfirmed` if nobody can be asked."""
    if request.about == "price":
        if not somebody_is_there():
            return True
        before_price()
        return _typed(request.question)
    if somebody_is_there():
        return _typed(f"{request.what}. {request.question}")
    raise NotConfirmed(f"{request.what}: {request.instead}, or add --yes if that is meant")


def _typed(question: str) -> bool:
    # The live view colours text that passes through it, and hides the cursor: write past it.
    seen = getattr(sys.stderr, "rich_proxied_file", None)
    to = seen or sys.stderr
    show, hide = (SHOWN, HIDDEN) if seen else ("", "")
    print(wrapped(f"{question} [y/N]", to), end=f" {show}", file=to, flush=True)
    try:
        answer = sys.stdin.readline()
        if not answer:  # Ctrl-D leaves the cursor on the same line
            print(file=to)
    finally:
        print(hide, end="", file=to, flush=True)
    return answer.strip().lower() in YES
