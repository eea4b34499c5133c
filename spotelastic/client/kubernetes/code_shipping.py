"""Ships a folder to the pods of a cluster on Kubernetes.

A small archive goes into ConfigMaps, for which nobody needs a right on the storage. A larger one
goes into the storage, beside the checkpoints: every pod can read there.
"""

import hashlib

from spotelastic_checkpoints.storage.open import folder_of, open_storage

from spotelastic.client.progress import Say
from spotelastic.client.storage import retried
from spotelastic.errors import UsageError
from spotelastic.kubernetes import pod_files

FOLDER = "code/"
"""Prefix of archives in the storage, each named by its hash: an unchanged folder is shipped once.
"""


def check(archive: bytes, storage: str) -> None:
    """Raise `UsageError` for an archive that cannot be shipped."""
    if pod_files.fits(archive) or folder_of(storage) is None:
        return
    raise UsageError(
        f"the folder has {len(archive) / 2**20:.1f} MiB compressed; more than "
        f"{pod_files.MOST_CODE // 2**20} MiB can be shipped only through an object store, and the "
        f"storage {storage} is a folder: name what is not needed in .gitignore, put data into the "
        "image, or give --bucket or --storage s3://BUCKET/RUN"
    )


def ship(archive: bytes, storage: str, say: Say) -> bytes:
    """Return what the pods are given: the archive itself, or where in the storage it is now.

    Raises `UsageError` for an archive that cannot be shipped, and `EnvironmentFailure` if the
    storage does not take it.
    """
    check(archive, storage)
    if pod_files.fits(archive):
        if archive:
            say(f"shipping {max(1, len(archive) // 1024)} KiB of code")
        return archive
    key = f"{FOLDER}{hashlib.sha256(archive).hexdigest()}.tar.gz"
    url = f"{storage.rstrip('/')}/{key}"
    with retried(lambda: open_storage(storage), say) as store:
        if key not in store.keys(FOLDER):
            say(f"shipping {len(archive) / 2**20:.1f} MiB of code to {url}")
            store.put(key, memoryview(archive))
    return pod_files.code_at(url)
