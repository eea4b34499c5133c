"""What S3 answers, by whichever client it is asked."""

_TRY_LATER = {408, 409, 412, 425, 429}
_PASSING = {
    "ExpiredToken",
    "IncompleteBody",
    "RequestTimeout",
    "RequestTimeTooSkewed",
    "Throttling",
    "ThrottlingException",
    "TokenRefreshRequired",
}
"""Codes of 400 and 403 that are of the moment: the body came too slowly or was cut, credentials are
due to be renewed, this machine's clock has not been set yet, too much was asked at once."""


def refuses(status: int, code: str) -> bool:
    """Whether an answer of this HTTP status and S3 error code (empty: none was seen) will not
    become another one by asking again."""
    return 400 <= status < 500 and status not in _TRY_LATER and code not in _PASSING
