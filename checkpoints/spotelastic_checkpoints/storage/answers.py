"""Tells which error answers of S3 are final, for all clients that talk to S3."""

_TRY_LATER = {408, 409, 412, 425, 429}
ALTERED = {"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
"""Codes of answers to an upload whose bytes do not match their checksum."""
_PASSING = ALTERED | {
    "ExpiredToken",
    "IncompleteBody",
    "RequestTimeout",
    "RequestTimeTooSkewed",
    "Throttling",
    "ThrottlingException",
    "TokenRefreshRequired",
}
"""Codes of answers 400 and 403 whose cause passes: the body came too slowly, cut off or changed,
credentials are due to be renewed, this machine's clock is not set yet, or there were too many
requests.
"""


def refuses(status: int, code: str) -> bool:
    """Return whether repeating a request cannot change its answer.

    `status` is the HTTP status, and `code` the error code of S3 (empty if the answer has none).
    """
    return 400 <= status < 500 and status not in _TRY_LATER and code not in _PASSING
