"""Stage 4 of a first run on AWS: EFA, and a type with several network cards."""

from pathlib import Path

from support.aws.first_run import marks, stage
from support.aws.first_run_scripts import REDUCES, with_facts

pytestmark = marks(4)
EFA = ("--instance-types", "g6.8xlarge", "--env", "NCCL_DEBUG=INFO")
CARDS = ("--min", "1", "--max", "1", "--instance-types", "g6e.24xlarge", "--env", "NCCL_DEBUG=INFO")
PROVIDER = "Selected provider is efa"
"""What the NCCL plugin says where it is used."""


def test_efa(tmp_path: Path) -> None:
    with stage(4, tmp_path, with_facts(REDUCES, gpus=True)) as run:
        with run.check("two nodes of one zone use EFA"):
            run.up("--min", "2", "--max", "2", "--placement", "cluster", *EFA, "train.py")
            run.status(lambda s: s.world_size == 2 and s.step > 50, "two ranks")
            run.facts_of_nodes()
            assert PROVIDER.lower() in run.cli("logs", run.name).lower()
        with run.check("two nodes of two zones use sockets"):
            run.cli("down", run.name, "--yes")
            run.up("--min", "2", "--max", "2", "--zones", "spread", *EFA, "train.py")
            run.status(lambda s: s.world_size == 2 and s.step > 20, "two ranks")
            assert "network" in run.cli("events", run.name)


def test_several_cards(tmp_path: Path) -> None:
    with (
        stage(4, tmp_path, with_facts(REDUCES, gpus=True), "first-run-cards") as run,
        run.check("a type with two network cards trains in a private subnet"),
    ):
        run.up(*CARDS, "train.py")
        run.status(lambda s: s.step > 20, "training")
        run.facts_of_nodes()
