"""Finds the endpoint, region and credentials of S3, as botocore would, without loading botocore.

obstore itself reads the environment, web identities, ECS and the instance metadata service.
"""

import configparser
import http.client
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.s3.ranges import connection_to, proxy_of

_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Access:
    """Where S3 is, and with which credentials it is used."""

    config: dict[str, Any]
    """Arguments for obstore's S3Store."""
    provider: Callable[[], Any] | None = None
    """Returns the credentials of a profile; None if obstore finds credentials by itself."""

    @property
    def address(self) -> str:
        """The URL that requests for objects go to."""
        return self.config.get("endpoint") or f"https://s3.{self.config['region']}.amazonaws.com"


def find_access(bucket: str) -> S3Access:
    """Return the access for a bucket, from the environment and AWS's configuration files."""
    config: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        config["endpoint"] = endpoint
    metadata = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    if metadata:  # botocore's name for it, which obstore does not know
        config["metadata_endpoint"] = metadata.rstrip("/")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    provider = None
    if "AWS_ACCESS_KEY_ID" not in os.environ and _has_profile():
        from obstore.auth.boto3 import Boto3CredentialProvider

        provider = Boto3CredentialProvider()
        region = region or provider.config.get("region")
    if not region:
        region = _DEFAULT_REGION if endpoint else _region_of(bucket)
    config["region"] = region
    return S3Access(config, provider)


def _has_profile() -> bool:
    """Return whether botocore would find credentials in a file."""
    if "AWS_PROFILE" in os.environ:
        return True
    files = [
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    ]
    found = configparser.RawConfigParser()
    try:
        found.read([Path(name).expanduser() for name in files])
    except configparser.Error:
        return True
    wanted = ("aws_access_key_id", "credential_process", "sso_session", "sso_start_url", "role_arn")
    return any(key in found[section] for section in found.sections() for key in wanted)


def _region_of(bucket: str) -> str:
    """Return the region of a bucket, as S3 tells it without credentials; else the default."""
    url = urlsplit("https://s3.amazonaws.com")
    try:
        connection = connection_to(url, proxy_of(url), within=3.0)
    except StorageRefused:  # `S3Storage` reports the proxy when it is opened
        return _DEFAULT_REGION
    try:
        connection.request("HEAD", f"/{bucket}")
        return connection.getresponse().getheader("x-amz-bucket-region") or _DEFAULT_REGION
    except (OSError, http.client.HTTPException):
        return _DEFAULT_REGION
    finally:
        connection.close()
