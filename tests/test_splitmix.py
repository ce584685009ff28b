"""The finaliser against plain integers, and against the sampler's own in torch."""

import numpy as np
import torch

from equipoise.kernels import uniform
from equipoise.splitmix import GAMMA, mix, mix_signed

MASK = 2**64 - 1


def plain(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_it_is_the_published_function():
    numbers = [0, 1, 2, 2**31, 2**63, MASK, 0x0123456789ABCDEF]
    assert mix(np.array(numbers, np.uint64)).tolist() == [plain(x) for x in numbers]
    # The first outputs of SplitMix64 seeded with 1234567, as its authors' program prints them.
    states = np.array([(1234567 + k * int(GAMMA)) & MASK for k in (1, 2, 3)], np.uint64)
    assert mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_torch_computes_the_same_bits():
    numbers = np.random.default_rng(0).integers(0, MASK, 1000, dtype=np.uint64, endpoint=True)
    found = mix_signed(torch.from_numpy(numbers.view(np.int64))).numpy()
    assert found.view(np.uint64).tolist() == mix(numbers).tolist()


def test_torch_and_numpy_count_by_the_same_constant():
    assert np.array([uniform.GAMMA], np.int64).view(np.uint64)[0] == GAMMA
    assert torch.tensor(uniform.GAMMA).dtype == torch.int64
