"""What S3 answers, by whichever client it is asked."""

PAGE = 1000
"""Keys per answer of a listing or request to delete; S3 takes no more."""
ANSWER_WITHIN = 20.0
"""Seconds for a small request, once it is connected."""

_TRY_LATER = {408, 409, 412, 425, 429}


def refuses(status: int) -> bool:
    """Whether this HTTP status will not become another one by asking again."""
    return 400 <= status < 500 and status not in _TRY_LATER
