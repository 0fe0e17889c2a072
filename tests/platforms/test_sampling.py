"""Renormalisation against its definition by sorting, and the hash against values of SGLang's own kernel."""

import os
import subprocess
import sys

import pytest
import torch

from nsd_sglang.platforms.cpu_sampling import murmur_hash32, row_argmax, top_k_renorm_prob, top_p_renorm_prob


def rows(vocab=3000, count=12, sharp=3.0, seed=0):
    return torch.softmax(sharp * torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)), -1)


def by_definition(probs, cut):
    """Keep the values that `cut(sorted row, largest first)` calls the smallest kept one, and what ties with it."""
    out = torch.zeros_like(probs)
    for row, target in zip(probs, out):
        keep = row >= cut(row.sort(descending=True).values)
        target[keep] = row[keep] / row[keep].sum()
    return out


@pytest.mark.parametrize("vocab", [5, 3000])
def test_top_k_keeps_ties_and_is_per_row(vocab):
    probs = rows(vocab)
    ks = torch.tensor([1, 2, 3, 4, vocab, 1 << 30, 1, 2, 3, 4, 5, 1], dtype=torch.int32)
    expected = torch.cat([by_definition(p[None], lambda s, k=k: s[min(int(k), vocab) - 1]) for p, k in zip(probs, ks)])
    torch.testing.assert_close(top_k_renorm_prob(probs, ks), expected)
    tied = torch.tensor([[0.3, 0.2, 0.2, 0.2, 0.1]])
    torch.testing.assert_close(top_k_renorm_prob(tied, torch.tensor([2])), torch.tensor([[3, 2, 2, 2, 0]]) / 9)


@pytest.mark.parametrize("vocab, sharp", [(5, 3.0), (3000, 3.0), (3000, 0.1)])
def test_top_p_is_the_smallest_set_that_reaches_p(vocab, sharp):
    probs = rows(vocab, sharp=sharp)
    ps = torch.linspace(0.05, 1.0, 12)

    def smallest_kept(p):
        return lambda s: s[int((s.double().cumsum(0) < float(p) - 1e-7).sum().clamp(max=vocab - 1))] if p < 1 else s[-1]

    expected = torch.cat([by_definition(row[None], smallest_kept(p)) for row, p in zip(probs, ps)])
    torch.testing.assert_close(top_p_renorm_prob(probs, ps), expected, atol=2e-6, rtol=1e-4)


def test_top_p_keeps_ties_at_the_edge():
    tied = torch.tensor([[0.4, 0.2, 0.2, 0.2], [1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    out = top_p_renorm_prob(tied, torch.tensor([0.5, 0.5, 0.1]))
    torch.testing.assert_close(out, tied)


def test_input_is_left_alone():
    probs = rows()
    before = probs.clone()
    top_k_renorm_prob(probs, torch.full((12,), 3))
    top_p_renorm_prob(probs, torch.full((12,), 0.5))
    assert torch.equal(probs, before)


def test_row_argmax_takes_the_first_of_ties():
    assert row_argmax(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])).tolist() == [1, 0]


SEEDS = [0, 1, -1, 123456789, 2**63 - 1, 2**40 + 17, -(2**62)]
POSITIONS = [0, 1, 5, 4096, 2**31 - 1, 77, 3]
COLUMNS = [0, 1, 2, 1023, 49151, 2**32 - 1]

KERNEL = f"""
import torch
from sglang.kernels.ops.sampling.murmur_hash import murmur_hash32_kernel
seed, pos, col = (torch.tensor(x) for x in ({SEEDS}, {POSITIONS}, {COLUMNS}))
out = torch.empty(len(seed), len(col), dtype=torch.int64)
murmur_hash32_kernel[(len(seed), 1)](seed, pos, col, out, len(seed), len(col), BLOCK_SIZE=8)
print((out & 0xFFFFFFFF).tolist())
"""


def test_hash_is_that_of_the_kernel():
    env = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", KERNEL], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    expected = eval(run.stdout.strip().splitlines()[-1])  # a list of lists of integers
    out = murmur_hash32(torch.tensor(SEEDS).to(torch.uint64), torch.tensor(POSITIONS), torch.tensor(COLUMNS))
    assert out.dtype == torch.uint32
    assert out.to(torch.int64).tolist() == expected
