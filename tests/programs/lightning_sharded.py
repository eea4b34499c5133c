"""lightning.Trainer with the plug-in, with FSDP2 on GPUs.

torchrun --nproc-per-node 2 tests/programs/lightning_sharded.py
"""

import os

import lightning_elastic
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard


class Sharded(lightning_elastic.Classifier):
    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for part in self.layers:
            if [*part.parameters()]:
                fully_shard(part, mesh=mesh)
        fully_shard(self.layers, mesh=mesh)


if __name__ == "__main__":
    world = int(os.environ["WORLD_SIZE"])
    strategy = ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1)
    lightning_elastic.main(Sharded, accelerator="gpu", strategy=strategy)
