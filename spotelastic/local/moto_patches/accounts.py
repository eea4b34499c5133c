"""Patches moto's account-level services: quotas, service-linked roles, DryRun of CreateVpc."""

from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.ec2.responses.instances import InstanceResponse
from moto.ec2.responses.vpcs import VPCs
from moto.iam import models as iam
from moto.iam.exceptions import EntityAlreadyExists, InvalidInput
from moto.servicequotas.models import ServiceQuotasBackend

from spotelastic.local.moto_patches.patch import Patches

KEY_OF_AWS = "alias/aws/ebs"
"""The key of new disks, which every service of the account may use."""
QUOTA = 100_000
"""What the account may have of anything that AWS counts."""


def install(patches: Patches) -> None:
    """Apply the patches."""

    @patches.method(VPCs, "create_vpc", "moto ignores DryRun")
    def create_vpc(original: Callable[..., Any], response: Any) -> Any:
        response.error_on_dryrun()
        return original(response)

    @patches.addition(ElasticBlockStore, "get_ebs_default_kms_key_id", "moto answers 500")
    def default_key(response: Any) -> ActionResult:
        return ActionResult({"KmsKeyId": KEY_OF_AWS})

    @patches.addition(
        ElasticBlockStore, "describe_vpc_block_public_access_options", "moto answers 500"
    )
    def public_access(response: Any) -> ActionResult:
        blocked = {"InternetGatewayBlockMode": "off"}
        return ActionResult({"VpcBlockPublicAccessOptions": blocked})

    @patches.addition(InstanceResponse, "describe_capacity_reservations", "moto has none")
    def reservations(response: Any) -> ActionResult:
        return ActionResult({"CapacityReservations": []})

    names = {**iam.SERVICE_NAME_CONVERSION, "spot": "EC2Spot"}
    patches.addition(
        iam, "SERVICE_NAME_CONVERSION", "moto gives the role of EC2 Spot another name"
    )(names)

    @patches.method(
        iam.IAMBackend, "create_service_linked_role", "moto has another error code if it exists"
    )
    def create_role(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(backend, *args, **kwargs)
        except EntityAlreadyExists as error:
            raise InvalidInput("Service role name has been taken in this account") from error

    @patches.method(
        ServiceQuotasBackend,
        "get_service_quota",
        "moto has no quotas of EC2 and EventBridge, and few VPCs",
    )
    def get_service_quota(
        original: Callable[..., Any], backend: Any, service_code: str, quota_code: str
    ) -> Any:
        if service_code not in ("ec2", "events", "vpc"):
            return original(backend, service_code, quota_code)
        return {
            "ServiceCode": service_code,
            "QuotaCode": quota_code,
            "Value": float(QUOTA),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
