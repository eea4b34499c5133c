"""Patches moto's account-level services: EC2 quotas, service-linked roles, DryRun of CreateVpc."""

from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.ec2.responses.vpcs import VPCs
from moto.iam import models as iam
from moto.iam.exceptions import EntityAlreadyExists, InvalidInput
from moto.servicequotas.models import ServiceQuotasBackend

from spotelastic.local.instances.capacity import SpotMarket
from spotelastic.local.moto_patches.patch import Patches


def install(patches: Patches, market: SpotMarket) -> None:
    """Apply the patches."""

    @patches.method(VPCs, "create_vpc", "moto ignores DryRun")
    def create_vpc(original: Callable[..., Any], response: Any) -> Any:
        response.error_on_dryrun()
        return original(response)

    @patches.addition(ElasticBlockStore, "get_ebs_default_kms_key_id", "moto answers 500")
    def default_key(response: Any) -> ActionResult:
        return ActionResult({"KmsKeyId": "alias/aws/ebs"})

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
        ServiceQuotasBackend, "get_service_quota", "moto has no quotas of EC2, and few VPCs"
    )
    def get_service_quota(
        original: Callable[..., Any], backend: Any, service_code: str, quota_code: str
    ) -> Any:
        if service_code not in ("ec2", "vpc"):
            return original(backend, service_code, quota_code)
        return {
            "ServiceCode": service_code,
            "QuotaCode": quota_code,
            "Value": float(market.quota(quota_code)),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
