"""Stores objects in S3 through obstore, without copying shared memory.

Uploads read shared memory directly, and ranges are read straight back into it.
"""

import re
import subprocess
from datetime import timedelta
from typing import Any, cast
from urllib.parse import urlsplit

import obstore
from obstore.store import S3Store

from spotelastic_checkpoints import isolated
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits
from spotelastic_checkpoints.storage.obstore_storage import (
    ObstoreStorage,
    Wording,
    client_options,
    status,
)
from spotelastic_checkpoints.storage.s3.access import S3Access, find_access
from spotelastic_checkpoints.storage.s3.ranges import Ranges, proxy_of

SWEEP_WITHIN = 60.0
SIGNED_FOR = timedelta(hours=1)

_RIGHTS = "give these credentials the rights in docs/reference/permissions.md"
_WORDING = Wording(
    no_credentials="no AWS credentials: none in the environment, no profile, and the instance "
    "metadata service does not answer",
    asks_for_credentials=re.compile(r"169\.254\.169\.254"),
    remedies={
        "AccessDenied": _RIGHTS,
        "403": _RIGHTS,
        "ExpiredToken": "these credentials have expired, renew them",
        "RequestTimeTooSkewed": "this machine's clock is wrong, set it",
    },
)
_WANTS_SUMS = re.compile(r"content-md5|x-amz-checksum", re.IGNORECASE)
"""Matches the answer of a bucket that refuses uploads without a checksum, as object lock does."""


class S3Storage(ObstoreStorage):
    """An object store in S3, with its keys under `s3://bucket/prefix`."""

    def __init__(
        self, url: str, limits: Limits = DEFAULT_LIMITS, access: S3Access | None = None
    ) -> None:
        """`access`: by default what the environment and AWS's configuration files say."""
        url = url.rstrip("/")
        bucket, _, self._prefix = url.removeprefix("s3://").partition("/")
        self._access = access or find_access(bucket)
        # Fail now for a bad proxy: writes accept any proxy, and only the first restore would fail.
        proxy_of(urlsplit(self._access.address))
        self._sums = False
        """Whether uploads carry a checksum, which a bucket with object lock wants."""
        small, bulk = self._store(bucket, limits.answer), self._store(bucket, limits.part)
        super().__init__(url, bucket, small, bulk, _WORDING, limits)
        self._ranges = Ranges(
            lambda key: obstore.sign(cast("S3Store", self._bulk), "GET", key, SIGNED_FOR),
            limits,
        )

    def read(self, key: str, offset: int, target: memoryview) -> int:
        try:
            with self._explained(key):
                return self._ranges.read(key, offset, target)
        except FileNotFoundError:
            return 0

    def unfinished(self) -> list[str]:
        return self._uploads("list", "").splitlines()

    def abort_uploads(self, prefix: str) -> int:
        return len(self._uploads("abort", prefix).splitlines())

    def close(self) -> None:
        self._ranges.close()

    def _store(self, bucket: str, seconds: float) -> S3Store:
        return S3Store(
            bucket,
            prefix=self._prefix or None,
            credential_provider=self._access.provider,
            virtual_hosted_style_request=False,
            # Every item is verified by our own checksum; a second hash would cost CPU.
            unsigned_payload=True,
            **cast("Any", {"checksum_algorithm": "sha256"} if self._sums else {}),
            client_options=client_options(seconds),
            retry_config={"max_retries": 0},
            **self._access.config,
        )

    def _uploads(self, action: str, prefix: str) -> str:
        """List or abort unfinished uploads in a process of its own.

        obstore cannot do this, and a client that can is too large to stay in a daemon.
        """
        module = "spotelastic_checkpoints.storage.s3.uploads"
        command = isolated.command(module, action, self.url, prefix)
        try:
            done = subprocess.run(
                command,
                env=isolated.environment(),
                capture_output=True,
                text=True,
                timeout=SWEEP_WITHIN,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError) as error:  # OSError: no memory for a process
            raise StorageUnavailable(f"{self.url}: unfinished uploads: {error}") from error
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2]
            raise StorageUnavailable(f"{self.url}: unfinished uploads: {said}")
        return done.stdout

    def _explain(self, error: Exception) -> None:
        number = status(error)
        if number == 301 or "redirect without LOCATION" in str(error):
            raise StorageRefused(
                f"the bucket {self._bucket} is in another region: set AWS_REGION to it"
            ) from error
        if number == 400 and _WANTS_SUMS.search(str(error)) and not self._sums:
            self._sums = True
            self._small = self._store(self._bucket, self._limits.answer)
            self._bulk = self._store(self._bucket, self._limits.part)
            raise StorageUnavailable(
                f"{self.url} wants a checksum with each upload: the next attempt sends one"
            ) from error
