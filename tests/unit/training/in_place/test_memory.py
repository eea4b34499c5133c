"""A process that grows from round to round is told from one that does not."""

import random
import subprocess
import sys

import pytest

from spotelastic.training.in_place.memory import GIB, Memory, grown

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "rounds"),
    [
        ([], 0),
        ([1000], 0),
        ([1000, 1100, 1200, 1300, 1400], 0),  # four rounds
        ([1000, 1050, 1100, 1150, 1200, 1250], 0),  # 250 MiB
        ([1000, 1060, 1120, 1180, 1240, 1300], 5),
        ([900, 800, 860, 920, 980, 1040, 1100], 5),
        ([10_000, 10_300, 10_600, 10_900, 11_200, 11_500], 0),  # 15 %
        ([10_000, 10_500, 11_000, 11_500, 12_000, 12_500], 5),
        ([1000, 1300, 1300, 1300, 1300, 1300, 1300], 0),  # once
        ([1000, 1100, 1200, 1300, 1300, 1400, 1500], 5),  # once it was as large again
        ([1000, 1100, 1200, 1300, 1200, 1300, 1400, 1500], 0),
        ([1000, 1000, 1000, 1000, 1000, 3000, 3000], 0),
        ([1000, 1200, 1300, 1350, 1375, 1385, 1390], 0),  # less and less
        ([10_000 + 100 * turn for turn in range(30)], 29),  # slowly, and without an end
    ],
)
def test_a_process_grows_if_it_does_so_round_after_round(sizes: list[int], rounds: int) -> None:
    assert grown([size * MIB for size in sizes]) == rounds


def test_what_grows_at_first_and_varies_later_does_not_grow_on() -> None:
    for seed in range(200):
        drawn = random.Random(seed)
        begun = [2 * GIB - 600 * MIB // 2**turn for turn in range(40)]
        sizes = [size + drawn.randrange(50 * MIB) for size in begun]
        assert not any(grown(sizes[:end]) for end in range(len(sizes)))


def test_what_grows_is_told_with_its_sizes() -> None:
    taken = [0]
    memory = Memory(lambda: {"memory": GIB, "GPU memory": 2 * GIB + taken[0] * 200 * MIB})
    for turn in range(6):
        assert memory.problem == ""
        taken[0] = turn
        memory.note()
    assert memory.problem == "its GPU memory grew in 5 rounds, to 3.0 GiB"


HOLDS = """
from spotelastic.training.in_place.memory import measured

before = measured()["memory"]
held = bytearray(b"x") * (64 << 20)
print(measured()["memory"] - before)
"""


def test_memory_of_this_process_is_measured() -> None:
    # In a process of its own: what earlier tests left is freed in this one at any moment.
    counted = subprocess.check_output([sys.executable, "-c", HOLDS], text=True)
    assert int(counted) > 32 * MIB
