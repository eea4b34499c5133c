"""Computes a keyed shuffle of sample numbers, without storing it.

It is a Feistel network over the smallest power of two that holds the size, keyed by seed and epoch,
with cycle walking: an image beyond the size is sent through again until it falls inside (Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Every position costs the same.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
"""Rounds of the Feistel network."""


class Permutation:
    """A permutation of 0 to `size` - 1, the same for equal (size, seed, epoch) on any machine."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._right_bits = np.uint64(bits - bits // 2)
        self._left = np.uint64((1 << bits // 2) - 1)
        self._right = np.uint64((1 << int(self._right_bits)) - 1)
        digest = hashlib.shake_256(f"{seed}/{epoch}".encode()).digest(8 * ROUNDS)
        self._keys = np.frombuffer(digest, dtype="<u8")

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements at these positions."""
        found = self._encipher(positions.astype(np.uint64))
        while (outside := found >= self.size).any():
            found[outside] = self._encipher(found[outside])
        return found.astype(np.int64)

    def _encipher(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._right_bits, values & self._right
        for number, key in enumerate(self._keys):
            if number % 2:
                right = right ^ (_mix(left ^ key) & self._right)
            else:
                left = left ^ (_mix(right ^ key) & self._left)
        return (left << self._right_bits) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of splitmix64, by which each bit of input affects each bit of output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
