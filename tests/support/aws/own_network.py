"""Creates a user's own VPC, and checks that a cluster leaves all of it unchanged."""

from typing import Any

from support.aws.account import NETWORK, REGION
from support.aws.cluster_requests import request

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.plan import ClusterSpec

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d")


class Own:
    """A network as somebody's platform team has made it: public subnets, and one for S3 alone."""

    def __init__(self, aws: Aws, block: str = NETWORK) -> None:
        self.aws, self.block, ec2 = aws, block, aws.ec2
        self.vpc = ec2.create_vpc(CidrBlock=block)["Vpc"]["VpcId"]
        gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=self.vpc)
        table = ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
        self.subnets = tuple(self._subnet(index, zone) for index, zone in enumerate(ZONES))
        for subnet in self.subnets:
            ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
            ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
        self.beside = self._subnet(8, ZONES[0])
        ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            ServiceName=f"com.amazonaws.{REGION}.s3",
            VpcEndpointType="Gateway",
            RouteTableIds=[table],
        )

    def _subnet(self, index: int, zone: str) -> str:
        block = self.block.replace(".0.0/16", f".{index}.0/24")
        made = self.aws.ec2.create_subnet(VpcId=self.vpc, CidrBlock=block, AvailabilityZone=zone)
        return str(made["Subnet"]["SubnetId"])

    def everything(self) -> dict[str, Any]:
        """All that the network is made of, as EC2 describes it, tags and all."""
        ec2, within = self.aws.ec2, [{"Name": "vpc-id", "Values": [self.vpc]}]
        attached = [{"Name": "attachment.vpc-id", "Values": [self.vpc]}]
        return {
            "vpc": ec2.describe_vpcs(VpcIds=[self.vpc])["Vpcs"],
            "subnets": ec2.describe_subnets(Filters=within)["Subnets"],
            "routes": ec2.describe_route_tables(Filters=within)["RouteTables"],
            "gateways": ec2.describe_internet_gateways(Filters=attached)["InternetGateways"],
            "endpoints": ec2.describe_vpc_endpoints(Filters=within)["VpcEndpoints"],
            "groups": ec2.describe_security_groups(Filters=within)["SecurityGroups"],
            "rules": ec2.describe_network_acls(Filters=within)["NetworkAcls"],
        }

    def request(self, name: str, **changes: Any) -> ClusterSpec:
        """For a cluster in it."""
        return request(name, 2, **({"vpc": self.vpc, "subnets": self.subnets} | changes))
