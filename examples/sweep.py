"""Trains one model with several settings, one trial after another, as one job.

    spotelastic run --standalone --nproc-per-node 2 examples/sweep.py
    spotelastic up --local --min 1 --max 2 examples/sweep.py --steps 200

The steps of all trials are counted together, and the scores are a part of the state. So a sweep
that is interrupted goes on at the trial and the step where it was, and repeats no trial that has
ended. The models of all trials have the same shape.
"""

import argparse
from itertools import product

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se

BATCH = 64
TRIALS = [
    {"lr": lr, "weight_decay": decay} for lr, decay in product((0.1, 0.01, 0.001), (0.0, 0.1))
]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def spirals(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points on one of two spirals, and on which."""
    made = torch.Generator().manual_seed(seed)
    turns, arm = 0.5 + 2.5 * torch.rand(count, generator=made), torch.arange(count) % 2
    angles = turns * torch.pi + arm * torch.pi
    points = torch.stack((angles.cos(), angles.sin()), 1) * turns[:, None]
    return points + 0.05 * torch.randn(points.shape, generator=made), arm.float()


def begin(trial: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make model and optimizer what they are before the first step of a trial."""
    torch.manual_seed(trial)
    model.load_state_dict(network().state_dict())
    for moments in optimizer.state.values():
        for moment in moments.values():
            moment.zero_()  # as an optimizer has them that has made no step
    for group in optimizer.param_groups:
        group.update(TRIALS[trial])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100, help="of each trial")
    args = parser.parse_args()

    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    train, held_out = spirals(512, seed=0), [each.to(device) for each in spirals(256, seed=1)]
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer, "scores": {}}
    # A trial begins with writes to the parameters that no optimizer makes: no overlap with saves.
    with se.Checkpointer(state, overlap=False) as checkpoint:
        for step in checkpoint.steps(len(TRIALS) * args.steps):
            trial, before = divmod(step.number - 1, args.steps)
            is_last = before == args.steps - 1
            if before == 0:
                begin(trial, model.module, optimizer)
            with step:
                drawn = torch.Generator().manual_seed(step.number)
                rows = torch.randint(512, (BATCH,), generator=drawn)
                points, arms = (each[rows].to(device) for each in train)
                mine = slice(dist.get_rank(), BATCH, dist.get_world_size())
                step.loss = F.binary_cross_entropy_with_logits(
                    model(points[mine])[:, 0], arms[mine]
                )
                step.loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if is_last:  # within the step, so that the save after it has the score
                    with torch.no_grad():
                        right = (model.module(held_out[0])[:, 0] > 0) == (held_out[1] > 0)
                    state["scores"] = state["scores"] | {trial: right.float().mean().item()}
            if step.finished and is_last:
                checkpoint.save()  # whatever happens now, this trial is not repeated
                if dist.get_rank() == 0:
                    print(f"trial {trial}, {TRIALS[trial]}: {state['scores'][trial]}", flush=True)
        scores = state["scores"]
    if dist.get_rank() == 0:
        best = max(scores, key=scores.__getitem__)
        print(f"best of {len(scores)}: trial {best}, {scores[best]:.1%} right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
