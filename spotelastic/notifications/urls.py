"""Reads the URLs that `--notify` takes, and says what is wrong with one without showing it.

A URL is a secret: it holds a token, or a password. What people see of it is its name, a number and
the service. apprise is imported here and in the process that sends, and only when there is a URL.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

from spotelastic.errors import UsageError

TOPIC = re.compile(r"sns:(arn:aws[\w-]*:sns:([a-z0-9-]+):\d{12}:[\w-]{1,256})")
"""A topic of Amazon SNS, which is told by the role of the control nodes."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://.", re.IGNORECASE | re.DOTALL)


def named(
    given: Sequence[str], variables: Mapping[str, str], flag: str = "--notify"
) -> dict[str, str]:
    """Return the URLs by names that are not secret, such as 1-slack.

    Each is a URL, or the name of one of the variables that holds it. Raises `UsageError`, which
    tells of the value no more than its number.
    """
    found = {}
    for number, text in enumerate(dict.fromkeys(given), 1):
        url = text.strip()
        if _VARIABLE.fullmatch(url):
            if not variables.get(url, "").strip():
                raise UsageError(f"{flag} {url}: there is no such variable here: export it first")
            url = variables[url].strip()
        found[f"{number}-{service(url, number, flag)}"] = url
    return found


def service(url: str, number: int, flag: str = "--notify") -> str:
    """Return the service that a URL is of. Raises `UsageError` if there is none."""
    which = f"the {_ordinal(number)} {flag}"
    if url.startswith("sns:"):
        if TOPIC.fullmatch(url) is None:
            raise UsageError(f"{which} is no topic: expected sns:arn:aws:sns:REGION:ACCOUNT:NAME")
        return "sns"
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise UsageError(
            f"{which} is no URL: expected one that Apprise knows, such as slack://…, mailto://…, "
            "ntfy://… or json://…, sns:ARN, or the name of a variable that holds one"
        )
    if not _is_understood(url):
        raise UsageError(
            f"{which}, a {scheme[1].lower()}:// URL, is none that Apprise understands: "
            "https://appriseit.com/services/ shows how each service's is written; "
            "`spotelastic doctor --notify` tries one"
        )
    return re.sub(r"[^a-z0-9]", "", scheme[1].lower())


def _is_understood(url: str) -> bool:
    quiet()
    import apprise

    return apprise.Apprise.instantiate(url, suppress_exceptions=True) is not None


def topics(urls: Iterable[str]) -> list[str]:
    """Return the ARNs of the topics among these."""
    return sorted({found[1] for url in urls if (found := TOPIC.fullmatch(url))})


def quiet() -> None:
    """Keep apprise from writing URLs to stderr, which it does with those that it does not know."""
    logger = logging.getLogger("apprise")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
