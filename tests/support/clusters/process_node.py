"""A node of `process_cloud.py`: `python -m support.clusters.process_node FOLDER` runs an agent."""

import json
import sys
from pathlib import Path

from support.clusters.process_cloud import FolderBucket, FolderNotices

from spotelastic.agent.agent_loop import run
from spotelastic.agent.config import AgentConfig


def main(place: Path) -> int:
    told = json.loads((place / "node.json").read_text())
    spec = FolderBucket(Path(told["bucket"]), told["cluster"]).job()
    assert spec is not None
    config = AgentConfig(
        run=spec.run,
        endpoints=spec.etcd,
        node=told["instance"],
        address=told["address"],
        zone=told["zone"],
        settings=spec.settings,
        command=(spec.script, *spec.args),
        workdir=Path(spec.folder),
        state=place / "agent",
        shm=Path(told["shm"]),
        storage=spec.storage,
        notices=FolderNotices(place, told["instance"]),
        spot=told["spot"],
        env=spec.env,
    )
    return run(config).code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
