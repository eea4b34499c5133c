"""Patches moto's account-level services: quotas, service-linked roles, DryRun of CreateVpc."""

from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.elastic_ip_addresses import ElasticAddressBackend
from moto.ec2.models.vpcs import VPCBackend
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.ec2.responses.vpcs import VPCs
from moto.iam import models as iam
from moto.iam.exceptions import EntityAlreadyExists, InvalidInput
from moto.servicequotas.models import ServiceQuotasBackend
from moto.ssm.exceptions import ValidationException
from moto.ssm.models import SimpleSystemManagerBackend

from spotelastic.local.instances.launch_checks import DiskKey
from spotelastic.local.instances.spot_market import SpotMarket
from spotelastic.local.moto_patches.patch import Patches

VPCS, ADDRESSES = "L-F678F1CE", "L-0263D0A3"
"""Codes of the quotas of networks and of elastic addresses in a region."""
LONGEST_PARAMETER = 4096
"""Bytes of a parameter of the standard tier."""


def install(patches: Patches, market: SpotMarket, disk_key: DiskKey) -> None:
    """Apply the patches."""

    @patches.method(VPCs, "create_vpc", "moto ignores DryRun")
    def create_vpc(original: Callable[..., Any], response: Any) -> Any:
        response.error_on_dryrun()
        return original(response)

    @patches.addition(ElasticBlockStore, "get_ebs_default_kms_key_id", "moto answers 500")
    def default_key(response: Any) -> ActionResult:
        return ActionResult({"KmsKeyId": disk_key.name})

    @patches.addition(
        ElasticBlockStore, "describe_vpc_block_public_access_options", "moto answers 500"
    )
    def public_access(response: Any) -> ActionResult:
        blocked = {"InternetGatewayBlockMode": "off"}
        return ActionResult({"VpcBlockPublicAccessOptions": blocked})

    _install_quotas(patches, market)
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


def _install_quotas(patches: Patches, market: SpotMarket) -> None:
    @patches.method(VPCBackend, "create_vpc", "moto has no quota of networks")
    def create_vpc(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        if len(backend.vpcs) >= market.quota(VPCS):
            raise EC2ClientError("VpcLimitExceeded", "The maximum number of VPCs has been reached.")
        return original(backend, *args, **kwargs)

    @patches.method(ElasticAddressBackend, "allocate_address", "moto has no quota of addresses")
    def allocate(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        if len(backend.addresses) >= market.quota(ADDRESSES):
            raise EC2ClientError(
                "AddressLimitExceeded", "The maximum number of addresses has been reached."
            )
        return original(backend, *args, **kwargs)

    @patches.method(
        SimpleSystemManagerBackend, "put_parameter", "moto takes parameters of any size"
    )
    def put_parameter(
        original: Callable[..., Any],
        backend: Any,
        name: str,
        description: str,
        value: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if len(value.encode()) > LONGEST_PARAMETER and kwargs.get("tier") in (None, "Standard"):
            raise ValidationException(
                "Standard tier parameters support a maximum parameter value of "
                f"{LONGEST_PARAMETER} characters. To create a larger parameter value, upgrade the "
                "parameter to use the advanced-parameter tier."
            )
        return original(backend, name, description, value, *args, **kwargs)
