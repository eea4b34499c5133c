"""Stage 3 of a first run on AWS: GPUs. Two of the cheapest, over sockets."""

from pathlib import Path

from support.aws.first_run import marks, stage
from support.aws.first_run_scripts import REDUCES, with_facts

pytestmark = marks(3)
UP = ("--min", "1", "--max", "2", "--instance-types", "g4dn.xlarge")
IMAGE = "pytorch/pytorch:latest"
SICK = "echo 1 > /sys/bus/pci/devices/$(lspci -D | awk '/NVIDIA/ {print $1; exit}')/remove\nexit\n"
"""Takes a GPU from its machine, as a fault of its bus does."""


def test_gpus(tmp_path: Path) -> None:
    with stage(3, tmp_path, with_facts(REDUCES, gpus=True)) as run:
        with run.check("two GPUs reduce"):
            run.up(*UP, "train.py")
            run.status(lambda s: s.world_size == 2 and s.step > 50, "two ranks")
            run.facts_of_nodes()
        with run.check("a notice in the middle of a step"):
            noticed = run.a_worker()
            run.cli("interrupt", noticed, "--name", run.name)
            run.trains_without(noticed)
        with run.check("a node is lost without notice"):
            lost = run.a_worker()
            run.aws.ec2.terminate_instances(InstanceIds=[lost])
            run.trains_without(lost)
        with run.check("a rank dies inside of an all-reduce"):
            node = run.a_worker()
            run.cli("shell", node, "--name", run.name, stdin="pkill -9 -f train.py\nexit\n")
            run.status(lambda s: s.world_size == 2 and s.state == "running", "both train again")
        with run.check("a node whose GPU has gone is replaced"):
            sick = run.a_worker()
            run.cli("shell", sick, "--name", run.name, stdin=SICK)
            run.trains_without(sick)
        run.evidence.fact("events", run.cli("events", run.name))
        run.evidence.fact("report", run.cli("report", run.name))
        with run.check("an image of one's own"):
            run.cli("down", run.name, "--yes")
            run.up(*UP, "--image", IMAGE, "train.py")
            run.status(lambda s: s.world_size >= 1 and s.step > 5, "a step in the image")
            run.evidence.fact("events with an image", run.cli("events", run.name))
