"""Stores objects in S3 through obstore, without copying shared memory.

Uploads read shared memory directly, and ranges are read straight back into it.
"""

import base64
import re
import subprocess
import threading
from datetime import timedelta
from http.client import HTTPException
from typing import cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import obstore
from obstore.store import S3Store

from spotelastic_checkpoints import isolated
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.answers import ALTERED
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits
from spotelastic_checkpoints.storage.obstore_storage import (
    ObstoreStorage,
    Wording,
    client_options,
    code,
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
        **dict.fromkeys(ALTERED, "what arrived is not what was sent: it is sent again"),
    },
)
FIRST_SUM, SECOND_SUM = "crc64nvme", "sha256"
"""Checksums of uploads. The first costs next to nothing; older stores know the second only."""
_OF_SUMS = re.compile(r"content-md5|checksum|crc64", re.IGNORECASE)
"""Matches the answer of a store that wants another checksum."""
_AWS = re.compile(r"\.amazonaws\.(com|eu|com\.cn)(:\d+)?$")
"""Matches hosts of AWS, where S3 compares each checksum."""
PROBE = "checksums"
"""Key of an object that is uploaded with a wrong checksum, to see whether that is refused."""


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
        self._sum = FIRST_SUM
        """The checksum that uploads carry."""
        self._probing = threading.Lock()
        self._verifies: bool | None = None
        """Whether the store compares it; None: not known yet."""
        if _AWS.search(urlsplit(self._access.address).netloc):
            self._verifies = True
        small, bulk = self._store(bucket, limits.answer), self._store(bucket, limits.part)
        super().__init__(url, bucket, small, bulk, _WORDING, limits)
        self._ranges = Ranges(
            lambda key: obstore.sign(cast("S3Store", self._bulk), "GET", key, SIGNED_FOR),
            limits,
        )

    def times(self, prefix: str = "") -> dict[str, float]:
        found = super().times(prefix)
        found.pop(PROBE, None)  # which is no object of a run
        return found

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
            # What it would hash has a checksum that costs a tenth of the time.
            unsigned_payload=True,
            checksum_algorithm=self._sum,
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
        wants_another = number in (400, 501) and _OF_SUMS.search(str(error))
        if wants_another and code(error) not in ALTERED and self._sum == FIRST_SUM:
            self._sum, self._verifies = SECOND_SUM, True
            self._small = self._store(self._bucket, self._limits.answer)
            self._bulk = self._store(self._bucket, self._limits.part)
            raise StorageUnavailable(
                f"{self.url} wants another checksum with uploads: the next attempt has one"
            ) from error

    def _verified(self) -> bool:
        with self._probing:
            if self._verifies is None:
                self._verifies = self._refuses_a_wrong_checksum()
            return bool(self._verifies)

    def _refuses_a_wrong_checksum(self) -> bool | None:
        """Upload an object with a checksum that is not its own; None where nothing can be told."""
        url = obstore.sign(cast("S3Store", self._small), "PUT", PROBE, SIGNED_FOR)
        wrong = {f"x-amz-checksum-{self._sum}": base64.b64encode(bytes(8)).decode()}
        try:
            request = Request(url, b"spotelastic", wrong, method="PUT")
            with urlopen(request, timeout=self._limits.answer):
                pass
        except HTTPError as error:
            error.close()
            return True if error.code == 400 else None
        except (OSError, HTTPException):
            return None
        return False
