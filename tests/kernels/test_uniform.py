import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equipoise.kernels.uniform import response_keys, uniforms

MASK = (1 << 64) - 1


def splitmix(x):
    """The finaliser in Python's unbounded integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@given(st.integers(), st.integers(0, 10**6), st.integers(), st.integers(0, 10**4), st.integers(0, 10**5))
def test_torch_integers_compute_splitmix(seed, step, prompt, sample, position):
    gamma, h = 0x9E3779B97F4A7C15, seed & MASK
    for part in (step, prompt, sample):
        h = splitmix((h + gamma) & MASK) ^ (part & MASK)
    key = splitmix((h + gamma) & MASK)
    u = splitmix((key + gamma * (position + 1)) & MASK) >> 40
    got = uniforms(response_keys(seed, step, [prompt], torch.tensor([sample])), torch.tensor([position]))
    assert got.item() == u / 2**24


def test_uniform_and_independent_in_every_coordinate():
    count, positions = 400, torch.arange(100)
    for seed in (0, 1):
        by_sample = uniforms(response_keys(seed, 0, ["p"] * count, torch.arange(count)), positions)
        by_prompt = uniforms(
            response_keys(seed, 0, list(range(count)), torch.zeros(count, dtype=torch.long)), positions
        )
        by_step = torch.cat([uniforms(response_keys(seed, s, [5], torch.tensor([3])), positions) for s in range(count)])
        for u in (by_sample, by_prompt, by_step):
            assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-4
            assert len(u.unique()) > 0.99 * u.numel()
            for other in (u[1:, :], u.roll(1, 1)):  # neighbouring keys, neighbouring positions
                r = np.corrcoef(u[: len(other)].flatten(), other.flatten())[0, 1]
                assert abs(r) < 4.5 / np.sqrt(other.numel())
        r = np.corrcoef(by_sample.flatten(), by_prompt.flatten())[0, 1]
        assert abs(r) < 4.5 / np.sqrt(by_sample.numel())


def test_any_part_of_the_key_changes_the_draws():
    zero = torch.tensor([0])
    base = [0, 0, [0], zero]
    keys = {int(response_keys(*base))}
    for part, value in ((0, 1), (1, 1), (2, [1]), (2, ["0"]), (3, torch.tensor([1]))):
        keys.add(int(response_keys(*[value if i == part else b for i, b in enumerate(base)])))
    assert len(keys) == 6
