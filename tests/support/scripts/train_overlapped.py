"""A script that trains the large model, with a save beside training at each step.

Argument: STEPS. It restores, ends with code 3 if the state differs from that of an uninterrupted
run, and trains up to that step. Then it exits without a last save.
"""

import os
import sys

import torch
from support.training import large_model
from support.training.open_checkpointer import wait_for_slots

import spotelastic as se


def main() -> None:
    torch.set_num_threads(1)
    wait_for_slots()
    state, last = large_model.make(), int(sys.argv[1])
    with se.Checkpointer(state) as checkpoint:
        step = checkpoint.restore()
        if not large_model.are_equal(large_model.tensors(state), large_model.trained(step)):
            os._exit(3)
        print(step, flush=True)
        while step < last:
            step += 1
            loss = large_model.one_step(state, step)
            checkpoint.step(step, loss=loss)
        raise SystemExit(1)  # all that is on its way is sealed, and nothing else


if __name__ == "__main__":
    main()
