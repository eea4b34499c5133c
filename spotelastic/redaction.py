"""Replaces the values of secrets in text that is logged or shown (pure)."""

import json
import re
from collections.abc import Callable, Iterable
from urllib.parse import quote, quote_plus

SHORTEST = 6
"""Shortest secret, in characters. Shorter values would also be replaced where they stand for
something else."""
REPLACEMENT = "***"
_PLAIN = re.compile(r"[A-Za-z]+([ _.-][A-Za-z]+)*|[0-9.]+")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_FORMATS = re.compile(
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
    r"|\bhf_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|\bsk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic
    r"|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"  # name and password in a URL
    r"|(?<=[Bb]earer )[\w.~+/-]{8,}=*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\w+/=\\\s]*(-----END [A-Z ]*PRIVATE KEY-----)?"
)


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces each secret, and each long line of one, in a text.

    It is also replaced as JSON, Python and URLs spell it. Other spellings (base64, a hash, a part
    of it) are not recognized.
    """
    parts = {
        spelling
        for secret in secrets
        for part in (secret, *secret.splitlines())
        for spelling in _spellings(part)
    }
    longest_first = sorted((p for p in parts if len(p) >= SHORTEST), key=len, reverse=True)

    def redact(text: str) -> str:
        for part in longest_first:
            text = text.replace(part, REPLACEMENT)
        return text

    return redact


def _spellings(text: str) -> tuple[str, ...]:
    """Return the text as it is written in itself, in JSON, in Python and in a URL."""
    as_bytes = text.encode("utf-8", "surrogateescape")
    in_url = [quote(as_bytes, safe=""), quote(as_bytes), quote_plus(as_bytes)]
    return (
        text,
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        *in_url,
        *(_PERCENT.sub(lambda found: found[0].lower(), each) for each in in_url),
    )


def telling(values: Iterable[str]) -> tuple[str, ...]:
    """Return the values of variables that may be secrets: neither plain words nor numbers.

    A plain word also stands elsewhere, where its replacement would hide what happened.
    """
    return tuple(value for value in values if not _PLAIN.fullmatch(value))


def without_known_formats(text: str) -> str:
    """Replace what has the form of a well-known service's key, whoever wrote it there."""
    return _FORMATS.sub(REPLACEMENT, text)
