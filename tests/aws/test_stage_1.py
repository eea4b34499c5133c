"""Stage 1 of a first run on AWS: control nodes alone. No worker is launched at this price."""

from pathlib import Path

from support.aws.first_run import Run, eventually, marks, stage

from spotelastic.aws.base.names import MEMBERS, SWITCH, Names
from spotelastic.aws.network import cloudformation

pytestmark = marks(1)
UP = ("--min", "1", "--max", "1", "--instance-types", "c5.large", "--max-price", "0.001")


def test_control_nodes(tmp_path: Path) -> None:
    with stage(1, tmp_path, "print('never run here')\n") as run:
        with run.check("three control nodes"):
            run.up(*UP, "train.py")
        seconds_of_each_resource(run)
        with run.check("a switch ends workers that nobody looks after"):
            its = run.aws.autoscaling.describe_scheduled_actions(
                AutoScalingGroupName=Names(run.name).workers
            )["ScheduledUpdateGroupActions"]
            assert SWITCH in {each["ScheduledActionName"] for each in its}
        with run.check("the same up changes nothing"):
            assert "changes: none" in run.cli("up", "--plan", "--name", run.name, *UP, "train.py")
        for member, lose in zip(MEMBERS, (terminate, stop, take_disk), strict=True):
            with run.check(f"control node {member}: {lose.__name__}"):
                lost = control_node(run, member)
                lose(run, lost)
                three_stand(run, without=lost)
        with run.check("two at once"):
            lost = control_node(run, "a")
            terminate(run, control_node(run, "b"))
            terminate(run, lost)
            three_stand(run, without=lost)
        with run.check("addresses and routes, before and after systemd's reload"):
            commands = "ip addr\nip rule\nip route show table all\n"
            node = control_node(run, "a")
            told = run.cli(
                "shell", node, "--name", run.name, stdin=f"{commands}networkctl reload\n{commands}"
            )
            run.evidence.fact("addresses of a control node", told)
        with run.check("down"):
            assert "its checkpoints stay" in run.cli("down", run.name, "--yes")


def seconds_of_each_resource(run: Run) -> None:
    with run.check("the stack"):
        name = Names(run.name).stack
        stack = cloudformation.describe(run.aws, name)
        assert stack is not None
        begun: dict[str, float] = {}
        spent: dict[str, float] = {}
        events = run.aws.cloudformation.describe_stack_events(StackName=name)["StackEvents"]
        for event in reversed(events):
            at, part = event["Timestamp"].timestamp(), event["LogicalResourceId"]
            if event["ResourceStatus"] == "CREATE_COMPLETE":
                spent[part] = round(at - begun.get(part, at), 1)
            begun.setdefault(part, at)
        run.evidence.fact("seconds of each resource", spent)


def control_node(run: Run, member: str) -> str:
    def look() -> str | None:
        (group,) = run.aws.autoscaling.describe_auto_scaling_groups(
            AutoScalingGroupNames=[Names(run.name).control(member)]
        )["AutoScalingGroups"]
        its = [i for i in group["Instances"] if i["LifecycleState"] == "InService"]
        return its[0]["InstanceId"] if its else None

    return eventually(look, f"a control node {member}")


def terminate(run: Run, node: str) -> None:
    run.aws.ec2.terminate_instances(InstanceIds=[node])


def stop(run: Run, node: str) -> None:
    run.aws.ec2.stop_instances(InstanceIds=[node])


def take_disk(run: Run, node: str) -> None:
    attached = [{"Name": "attachment.instance-id", "Values": [node]}]
    volumes = run.aws.ec2.describe_volumes(Filters=attached)["Volumes"]
    its = [v for v in volumes if v["Attachments"][0]["Device"] not in ("/dev/xvda", "/dev/sda1")]
    run.aws.ec2.detach_volume(VolumeId=its[0]["VolumeId"], Force=True)


def three_stand(run: Run, *, without: str) -> None:
    run.status(
        lambda s: (
            without not in {n.id for n in s.nodes if n.state in ("leading", "standing by")}
            and sum(n.state in ("leading", "standing by") for n in s.nodes) == len(MEMBERS)
        ),
        f"a control node in the place of {without}",
    )
