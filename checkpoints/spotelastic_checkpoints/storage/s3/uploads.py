"""Lists or aborts unfinished multipart uploads on S3: `uploads list|abort URL PREFIX`.

Prints their keys, relative to the URL. It is a process of its own, because s3fs takes some 60 MiB
that a daemon needs only now and then, for a moment.
"""

import os
import sys

from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.storage.filesystems import S3fsStorage


def main() -> str | None:
    """Do what the arguments say. Returns an error message, or None."""
    action, url, prefix = sys.argv[1:]
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    try:
        storage = S3fsStorage(url, {"client_kwargs": {"region_name": region}} if region else None)
        for key in storage.aborted(prefix) if action == "abort" else storage.unfinished():
            print(key)
    except CheckpointsError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
