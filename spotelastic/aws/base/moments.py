"""Reads the times that AWS writes into its metadata and events (pure)."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def moment(text: object) -> float:
    """Return a time in seconds since the epoch. One without a zone is in UTC.

    AWS writes "2017-09-18T08:22:00Z" in most places, "21 Jan 2019 09:00:43 GMT" for maintenance and
    "Fri, 3 Jun 2022 05:01:10 GMT" in its health events. Raises `ValueError` for anything else.
    """
    try:
        if not isinstance(text, str):
            raise TypeError
        try:
            read = datetime.fromisoformat(text)
        except ValueError:
            read = parsedate_to_datetime(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"{text!r:.100} is no time") from error
