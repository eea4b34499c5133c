"""Patches moto's CloudFormation.

With the patches, resources are complete, updates lose nothing, and stacks can be deleted.
"""

from collections.abc import Callable
from typing import Any

from moto.autoscaling.models import FakeAutoScalingGroup
from moto.cloudformation import parsing
from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend, Stack, cloudformation_backends
from moto.ec2.exceptions import DependencyViolationError
from moto.ec2.models import ec2_backends
from moto.ec2.models.elastic_block_store import Volume
from moto.ec2.models.elastic_ip_addresses import ElasticAddress
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.models.internet_gateways import InternetGateway
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.route_tables import Route, RouteTable
from moto.ec2.models.subnets import SubnetRouteTableAssociation
from moto.ec2.models.vpcs import VPCEndPoint
from moto.ec2.models.vpn_gateway import VPCGatewayAttachment
from moto.iam.models import Role

from spotelastic.local.autoscaling.regional_groups import RegionalScaling
from spotelastic.local.moto_patches.group_calls import put_hook
from spotelastic.local.moto_patches.patch import Patches


def install(patches: Patches, scaling: RegionalScaling, deleted: Callable[[], object]) -> None:
    """Apply the patches; `deleted` is called after each deletion of a stack."""
    _install_roles(patches)
    _install_parameters(patches)
    _install_groups(patches, scaling)
    _install_updates(patches)
    _install_tags(patches)
    _install_imports(patches)
    _install_deletion(patches, deleted)


def _install_roles(patches: Patches) -> None:
    @patches.method(
        Role, "create_from_cloudformation_json", "moto takes a policy that is no value for one"
    )
    def create(
        original: Callable[..., Any], name: str, resource: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        properties = resource["Properties"]
        properties["Policies"] = [each for each in properties.get("Policies", ()) if each]
        return original(name, resource, *args, **kwargs)


def _install_parameters(patches: Patches) -> None:
    def parameter_list(stack: Any) -> list[dict[str, Any]]:
        hidden = stack.resource_map.no_echo_parameter_keys
        return [
            {
                "ParameterKey": key,
                "ParameterValue": "****" if key in hidden else _text(value),
            }
            for key, value in stack.resource_map.resolved_parameters.items()
        ]

    patches.addition(
        Stack, "parameter_list", "moto shows lists as Python prints them, and hides by value"
    )(property(parameter_list))
    patches.addition(
        Stack, "stack_resources", "moto lists resources with a false condition as None"
    )(property(lambda stack: [each for each in stack.resource_map.values() if each is not None]))


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _install_groups(patches: Patches, scaling: RegionalScaling) -> None:
    @patches.method(
        FakeAutoScalingGroup,
        "create_from_cloudformation_json",
        "moto ignores hooks and capacity rebalancing",
    )
    def create(
        original: Callable[..., Any], name: str, definition: Any, *args: Any, **kwargs: Any
    ) -> Any:
        group = original(name, definition, *args, **kwargs)
        properties = definition["Properties"]
        group.stack_sizes = _sizes(properties)
        group.capacity_rebalance = str(properties.get("CapacityRebalance")).lower() == "true"
        for hook in properties.get("LifecycleHookSpecificationList", []):
            put_hook(group.autoscaling_backend, group.name, hook)
        return group

    @patches.method(
        FakeAutoScalingGroup,
        "update_from_cloudformation_json",
        "moto deletes the group and creates a new one, whatever changed",
    )
    def update(
        original: Callable[..., Any],
        original_resource: Any,
        new_resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
    ) -> Any:
        properties = cloudformation_json["Properties"]
        sizes, before = _sizes(properties), original_resource.stack_sizes
        original_resource.stack_sizes = sizes
        if _keeps_sizes(cloudformation_json):
            sizes = {key: None if size == before[key] else size for key, size in sizes.items()}
        original_resource.update(
            availability_zones=[],
            launch_config_name=properties.get("LaunchConfigurationName"),
            launch_template=properties.get("LaunchTemplate") or {},
            vpc_zone_identifier=",".join(properties.get("VPCZoneIdentifier", [])) or None,
            health_check_period=properties.get("HealthCheckGracePeriod"),
            health_check_type=properties.get("HealthCheckType"),
            mixed_instances_policy=properties.get("MixedInstancesPolicy"),
            **sizes,
        )
        scaling.wake()
        return original_resource

    @patches.method(
        FakeAutoScalingGroup, "delete", "a stack deletes what the instances use right after it"
    )
    def delete(original: Callable[..., Any], group: Any, account: str, region: str) -> None:
        if group.name in group.autoscaling_backend.autoscaling_groups:
            scaling.of(region).delete_now(group.name)


def _sizes(properties: Any) -> dict[str, int | None]:
    """Return the sizes of a group that a template names."""
    return {
        key: None if (value := properties.get(name)) is None else int(value)
        for key, name in _SIZES.items()
    }


def _keeps_sizes(definition: Any) -> bool:
    """Whether a group keeps the sizes that its template has not changed."""
    policy = definition.get("UpdatePolicy", {}).get("AutoScalingScheduledAction", {})
    return str(policy.get("IgnoreUnmodifiedGroupSizeProperties")).lower() == "true"


_SIZES = {"min_size": "MinSize", "max_size": "MaxSize", "desired_capacity": "DesiredCapacity"}


def _install_updates(patches: Patches) -> None:
    known = parsing.parse_and_update_resource

    def update(logical_id: str, definition: Any, resources: Any, *args: Any, **kwargs: Any) -> Any:
        condition = definition.get("Condition")
        if condition and not resources.lazy_condition_map[condition]:
            _remove(logical_id, definition, resources)
            return None
        found = known(logical_id, definition, resources, *args, **kwargs)
        return found or resources[logical_id]

    patches.addition(
        parsing,
        "parse_and_update_resource",
        "moto forgets resources that it cannot update, and keeps those whose condition has ended",
    )(update)


def _remove(logical_id: str, definition: Any, resources: Any) -> None:
    made = resources._parsed_resources.get(logical_id)
    if made is not None:
        resources._delete_resource(made, definition)


def _install_tags(patches: Patches) -> None:
    for model in (NetworkInterface, Volume):

        def create(
            original: Callable[..., Any], name: str, definition: Any, *args: Any, **kwargs: Any
        ) -> Any:
            properties = definition["Properties"]
            if "GroupSet" in properties:
                properties["SecurityGroups"] = properties["GroupSet"]
            resource = original(name, definition, *args, **kwargs)
            resource.add_tags({tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])})
            return resource

        patches.method(
            model,
            "create_from_cloudformation_json",
            "moto ignores tags, and an interface's security groups",
        )(create)


def _install_imports(patches: Patches) -> None:
    known = parsing.clean_json

    def clean_json(value: Any, resources: Any) -> Any:
        if isinstance(value, dict) and "Fn::ImportValue" in value:
            name = known(value["Fn::ImportValue"], resources)
            vars(resources).setdefault("imports", set()).add(name)
        return known(value, resources)

    patches.addition(parsing, "clean_json", "moto does not remember what a stack imports")(
        clean_json
    )


def _importers(backend: Any, exporting: Any) -> list[str]:
    """Return the names of the stacks that import something of this one."""
    exported = set(_exports(exporting))
    return sorted(
        stack.name
        for stack in backend.stacks.values()
        if stack is not exporting and exported & vars(stack.resource_map).get("imports", set())
    )


def _exports(stack: Any) -> list[str]:
    outputs = stack.template_dict.get("Outputs") or {}
    return [str(output["Export"]["Name"]) for output in outputs.values() if "Export" in output]


def _forget_outputs(stack: Any) -> None:
    """Take the outputs from a stack that has none any more: moto would make the resources anew."""
    exported = cloudformation_backends[stack.account_id][stack.region_name].exports
    for name in _exports(stack):
        exported.pop(name, None)
    stack.output_map = parsing.OutputMap(stack.resource_map, {}, stack.stack_id)


def _install_deletion(patches: Patches, deleted: Callable[[], object]) -> None:
    for model, gone in _DELETIONS.items():

        def delete(
            resource: Any, account: str = "", region: str = "", gone: Callable[..., Any] = gone
        ) -> None:
            gone(resource, ec2_backends[account][region] if account else resource.ec2_backend)

        patches.addition(model, "delete", "moto keeps it after its stack is deleted")(delete)

    @patches.method(Stack, "create_resources", "moto leaves resources of a failed creation")
    def create_resources(original: Callable[..., Any], stack: Any) -> None:
        try:
            original(stack)
        except Exception as error:
            stack._add_stack_event("CREATE_FAILED", resource_status_reason=_reason(error))
            stack.resource_map.delete()
            _forget_outputs(stack)
            stack._add_stack_event("ROLLBACK_COMPLETE")
            stack.status = "ROLLBACK_COMPLETE"

    @patches.method(
        CloudFormationBackend, "delete_stack", "moto forgets a stack that could not be deleted"
    )
    def delete_stack(original: Callable[..., Any], backend: Any, name: str) -> None:
        found = [stack for stack in backend.stacks.values() if name in (stack.name, stack.stack_id)]
        for stack in found:
            if importers := _importers(backend, stack):
                raise ValidationError(
                    stack.stack_id,
                    message=f"Export {_exports(stack)[0]} cannot be deleted as it is in use by "
                    f"{' and '.join(importers)}",
                )
        try:
            original(backend, name)
        except Exception as error:
            for stack in found:
                stack._add_stack_event("DELETE_FAILED", resource_status_reason=_reason(error))
                stack.status = "DELETE_FAILED"
                backend.stacks[stack.stack_id] = stack
        else:
            for stack in found:
                _forget_outputs(stack)
            deleted()


def _reason(error: Exception) -> str:
    return str(getattr(error, "message", "") or error or type(error).__name__)


def _delete_association(resource: Any, backend: Any) -> None:
    if table := backend.route_tables.get(resource.route_table_id):
        for association, subnet in list(table._associations.items()):
            if subnet == resource.subnet_id:
                del table._associations[association]


def _detach_gateway(resource: Any, backend: Any) -> None:
    for gateway in backend.internet_gateways.values():
        if gateway.vpc and gateway.vpc.id == resource.vpc_id:
            gateway.vpc = None


def _delete_endpoint(resource: Any, backend: Any) -> None:
    """Delete an endpoint. Resources go in any order: its route tables may already be gone."""
    tables = [table for table in resource.route_table_ids if table in backend.route_tables]
    resource.route_table_ids = tables
    backend.delete_vpc_endpoints([resource.id])


def _delete_volume(resource: Any, backend: Any) -> None:
    """Delete a volume, unless something else has deleted it."""
    if resource.id in backend.volumes:
        backend.delete_volume(resource.id)


def _delete_nat_gateway(resource: Any, backend: Any) -> None:
    for address in backend.addresses:
        if address.eni is resource._eni:
            backend.disassociate_address(association_id=address.association_id)
    backend.delete_nat_gateway(resource.id)
    backend.delete_network_interface(resource._eni.id)


def _release_address(resource: Any, backend: Any) -> None:
    if resource.association_id:
        raise DependencyViolationError(f"{resource.allocation_id} is in use.")
    backend.release_address(allocation_id=resource.allocation_id)


_DELETIONS: dict[type, Callable[[Any, Any], Any]] = {
    ElasticAddress: _release_address,
    InternetGateway: lambda resource, backend: backend.delete_internet_gateway(resource.id),
    NatGateway: _delete_nat_gateway,
    NetworkInterface: lambda resource, backend: backend.delete_network_interface(resource.id),
    Route: lambda resource, backend: resource.route_table._routes.pop(resource.id, None),
    RouteTable: lambda resource, backend: backend.delete_route_table(resource.id),
    SubnetRouteTableAssociation: _delete_association,
    Volume: _delete_volume,
    VPCEndPoint: _delete_endpoint,
    VPCGatewayAttachment: _detach_gateway,
}
"""How EC2 deletes a stack's resource; what raises is tried again after the others."""
