"""Lists or aborts unfinished multipart uploads on S3: `uploads list|abort URL PREFIX`.

Prints their keys, relative to the URL. It is a process of its own, because boto3 takes some 30 MiB
that a daemon needs only now and then, for a moment.
"""

import os
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError


def main() -> str | None:
    """Do what the arguments say. Returns an error message, or None."""
    action, url, prefix = sys.argv[1:]
    try:
        _uploads(action, url, prefix)
    except (BotoCoreError, ClientError) as error:
        return str(error)
    return None


def _uploads(action: str, url: str, prefix: str) -> None:
    bucket, _, root = url.removeprefix("s3://").rstrip("/").partition("/")
    root = root + "/" if root else ""
    client = boto3.client(
        "s3",
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        config=Config(connect_timeout=3, read_timeout=20, retries={"total_max_attempts": 2}),
    )
    pages = client.get_paginator("list_multipart_uploads").paginate(
        Bucket=bucket, Prefix=root + prefix
    )
    for page in pages:
        for upload in page.get("Uploads", ()):
            if action == "abort":
                client.abort_multipart_upload(
                    Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
            print(upload["Key"].removeprefix(root))
