"""Launches an instance for an Auto Scaling group of the local cloud."""

from typing import Any

from spotelastic.local.autoscaling.planner import LaunchPool


def launch(group: Any, place: LaunchPool, spot: bool) -> Any:
    """Launch one instance in a pool. Raises EC2's error."""
    version = group.ec2_launch_template.get_version(group.launch_template_version)
    tags = {**group.get_propagated_tags(), "aws:autoscaling:groupName": group.name}
    reservation = group.ec2_backend.run_instances(
        None,
        1,
        version.user_data,
        version.security_groups,
        instance_type=place.type,
        region_name=group.region,
        subnet_id=place.subnet,
        launch_template={
            "LaunchTemplateId": group.ec2_launch_template.id,
            "Version": str(version.number),
        },
        tags={"instance": tags},
        spot=spot,
        associate_public_ip=None,
    )
    return reservation.instances[0]
