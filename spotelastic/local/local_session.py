"""Makes boto3 clients that use a local cloud, whatever the environment says.

So one process can use a local cloud and AWS side by side.
"""

from typing import Any

from spotelastic.local import cloud
from spotelastic.local.cloud import CloudInfo


class LocalSession:
    """A session as `spotelastic.aws` expects it, whose clients call the local cloud."""

    def __init__(self, info: CloudInfo, region: str = "") -> None:
        """`region`: another one than the cloud was started with."""
        import boto3

        given = cloud.environment(info)
        self._endpoint = info.endpoint
        self._session = boto3.session.Session(
            aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
            region_name=region or info.region,
        )

    @property
    def region_name(self) -> str | None:
        """The region that clients are for."""
        return str(self._session.region_name)

    @property
    def events(self) -> Any:
        """Botocore's hooks, which see every call of every client."""
        return self._session.events

    def client(self, service_name: str, *, region_name: str, config: Any) -> Any:
        """Return a client of one service."""
        return self._session.client(
            service_name, region_name=region_name, config=config, endpoint_url=self._endpoint
        )

    def get_partition_for_region(self, region_name: str) -> str:
        """Return the partition in ARNs of the region."""
        return str(self._session.get_partition_for_region(region_name))
