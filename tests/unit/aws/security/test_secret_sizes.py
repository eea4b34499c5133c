"""Secrets that the Parameter Store would refuse, once a cluster is half made."""

import pytest

from spotelastic.aws.security.secrets import LARGEST, check_sizes
from spotelastic.errors import UsageError


def test_a_secret_is_measured_in_bytes_before_anything_is_made() -> None:
    check_sizes({"KEY": "k" * LARGEST, "OTHER": ""})
    with pytest.raises(UsageError, match=r"--secret KEY: it has 4097 bytes, and the .* takes 4096"):
        check_sizes({"KEY": "k" * (LARGEST + 1)})
    with pytest.raises(UsageError, match="--secret KEY: it has 4098 bytes"):
        check_sizes({"KEY": "é" * (LARGEST // 2 + 1)})
