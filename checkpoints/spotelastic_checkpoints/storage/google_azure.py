"""Stores objects in Google Cloud Storage and Azure through obstore.

Both stores have conditional writes. A call may hang in the client, for example in a program that is
asked for credentials; it is abandoned at its deadline. An abandoned call may still write later, so
it is only given copies of the data.
"""

import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.hanging import Hanging
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits
from spotelastic_checkpoints.storage.obstore_storage import (
    PIECE,
    ObstoreStorage,
    Wording,
    client_options,
    put_parts,
)
from spotelastic_checkpoints.storage.parts import PARTS_AT_ONCE, WHOLE, cut, part_size

if TYPE_CHECKING:
    from obstore.store import ObjectStore

GOOGLE = ("gs", "gcs")

_GOOGLE_WORDING = Wording(
    no_credentials="no Google credentials: run `gcloud auth application-default login`, set "
    "GOOGLE_APPLICATION_CREDENTIALS to a key file, or give the machine a service account",
    remedies=dict.fromkeys(
        ("AccessDenied", "403"), "give these credentials the role Storage Object User"
    ),
)
_AZURE_WORDING = Wording(
    bucket="container",
    no_bucket="ContainerNotFound",
    no_credentials="no Azure credentials: set AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_TOKEN, AZURE_USE_AZURE_CLI=1 after `az login`, or give the machine an "
    "identity",
    remedies={
        **dict.fromkeys(
            ("AuthorizationFailure", "AuthorizationPermissionMismatch", "403"),
            "give these credentials the role Storage Blob Data Contributor",
        ),
        "AuthenticationFailed": "the key or token is not of this account, or this machine's clock "
        "is wrong",
    },
)
_OF_A_CONNECTION_STRING = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}

T = TypeVar("T")


class HangingObstoreStorage(ObstoreStorage):
    """An `ObstoreStorage` whose calls are abandoned at their deadline."""

    def __init__(
        self,
        url: str,
        bucket: str,
        make: Callable[[float], "ObjectStore"],
        wording: Wording,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Make two clients with `make`, which gets the seconds that one request may take."""
        super().__init__(url, bucket, make(limits.answer), make(limits.part), wording, limits)
        self._hanging = Hanging()

    def _within(self, seconds: float, call: Callable[[], T]) -> T:
        return self._hanging.within(seconds, call)

    def _put(self, key: str, data: memoryview, progress: Callable[[int], None]) -> None:
        if len(data) <= WHOLE:
            self._hanging.copied(
                self._limits.part,
                data,
                lambda copy: obstore.put(self._bulk, key, copy, use_multipart=False),
            )
            progress(len(data))
            return
        # PARTS_AT_ONCE parts are being sent, and one more is being filled.
        size = part_size(len(data))
        room = (PARTS_AT_ONCE + 1) * size
        seconds = self._limits.part * (1 + len(data) / size / PARTS_AT_ONCE)
        copies = _Copies(data, progress)
        try:
            self._hanging.with_room(
                seconds, room, lambda: put_parts(self._bulk, key, copies, len(data))
            )
        finally:
            copies.end()


class _Copies(Iterator[bytes]):
    """Copies of the pieces of `data`, until their upload is abandoned."""

    def __init__(self, data: memoryview, progress: Callable[[int], None]) -> None:
        self._pieces = cut(data, PIECE)
        self._progress = progress
        self._lock = threading.Lock()
        self._ended = False

    def __next__(self) -> bytes:
        with self._lock:
            if self._ended:
                raise TimeoutError("this upload was abandoned at its deadline")
            copy = bytes(next(self._pieces))
        self._progress(len(copy))
        return copy

    def end(self) -> None:
        """Stop reading `data`. An upload that is not complete then fails."""
        with self._lock:
            self._ended = True


def open_google_or_azure(url: str, limits: Limits = DEFAULT_LIMITS) -> ObstoreStorage:
    """Open a bucket of Google Cloud Storage or a container of Azure.

    The URL is `gs://bucket/prefix`, `az://container/prefix`, or
    `abfs://container@account.dfs.core.windows.net/prefix`. Raises `StorageRefused` if the bucket is
    missing or the credentials cannot be used.
    """
    scheme, _, rest = url.partition("://")
    rest = rest.rstrip("/")
    url = f"{scheme}://{rest}"
    bucket = rest.partition("/")[0].partition("@")[0]
    if not bucket:
        what = "bucket" if scheme in GOOGLE else "container"
        raise StorageRefused(f"{url}: the {what} is missing, as in {scheme}://{what}/prefix")
    if scheme in GOOGLE:
        return HangingObstoreStorage(url, bucket, _google(f"gs://{rest}"), _GOOGLE_WORDING, limits)
    return HangingObstoreStorage(url, bucket, _azure(url), _AZURE_WORDING, limits)


def _google(url: str) -> Callable[[float], GCSStore]:
    def make(seconds: float) -> GCSStore:
        try:
            return GCSStore.from_url(
                url, client_options=client_options(seconds), retry_config={"max_retries": 0}
            )
        except (BaseError, ValueError) as error:
            raise StorageRefused(
                f"{url}: the credentials cannot be used: {_first_line(error)}"
            ) from error

    return make


def _azure(url: str) -> Callable[[float], AzureStore]:
    def make(seconds: float) -> AzureStore:
        config: Any = _connection_string(os.environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
        try:
            return AzureStore.from_url(
                url,
                config=config,
                client_options=client_options(seconds),
                retry_config={"max_retries": 0},
            )
        except (BaseError, ValueError) as error:
            if "Account must be specified" in str(error):
                raise StorageRefused(
                    f"{url}: name the storage account in AZURE_STORAGE_ACCOUNT_NAME"
                ) from error
            raise StorageRefused(f"{url}: {_first_line(error)}") from error

    return make


def _connection_string(text: str) -> dict[str, str]:
    """Return the fields of an Azure connection string that obstore needs."""
    fields = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    return {
        ours: fields[theirs] for theirs, ours in _OF_A_CONNECTION_STRING.items() if theirs in fields
    }


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
