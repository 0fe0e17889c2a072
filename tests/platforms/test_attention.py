"""One attention pass against a softmax written out row by row."""

import pytest
import torch

from nsd_sglang.platforms.cpu_attention import Pass, attend


def by_rows(q, keys, values, prefix, own, visible, scaling):
    """prefix, own: one list of slots per request; visible[b][i][j]: whether row i of request b sees own slot j."""
    group, out, row = q.shape[1] // keys.shape[1], [], 0
    for b, slots in enumerate(prefix):
        for i in range(len(visible[b])):
            seen = slots + [s for j, s in enumerate(own[b]) if visible[b][i][j]]
            heads = []
            for h in range(q.shape[1]):
                weight = torch.softmax(keys[seen, h // group] @ q[row, h] * scaling, 0)
                heads.append(weight @ values[seen, h // group])
            out.append(torch.cat(heads))
            row += 1
    return torch.stack(out)


@pytest.mark.parametrize("prefix_lens", [[5], [7, 0, 3], [4, 4]])
@pytest.mark.parametrize("kind", ["causal", "tree", "one", "branches"])
def test_pass(prefix_lens, kind):
    generator = torch.Generator().manual_seed(1)
    batch, longest = len(prefix_lens), max(prefix_lens)
    keys, values = torch.randn(80, 2, 8, generator=generator), torch.randn(80, 2, 6, generator=generator)
    slots = torch.randperm(80, generator=generator)
    prefix, own = slots[: batch * longest].view(batch, longest), slots[-batch * 4 :].view(batch, 4)
    visible = {
        "causal": torch.ones(4, 4, dtype=torch.bool).tril(),
        "tree": torch.eye(4, dtype=torch.bool) | (torch.arange(4) == 0),
        "one": torch.ones(1, 1, dtype=torch.bool),
        "branches": torch.tensor([[True, True, False, False], [False, False, True, True]]),
    }[kind]
    own = own[:, : visible.shape[1]]
    queries = visible.shape[0]
    q = torch.randn(batch * queries, 6, 8, generator=generator)
    p = Pass(slice(0, batch * queries), prefix, torch.tensor(prefix_lens), own, visible)
    expected = by_rows(
        q, keys, values, [prefix[b, :n].tolist() for b, n in enumerate(prefix_lens)], own.tolist(), [visible.tolist()] * batch, 0.3
    )
    torch.testing.assert_close(attend(q, keys, values, p, 0.3), expected)


def test_nothing_hidden_needs_no_mask():
    p = Pass(slice(0, 1), torch.arange(5)[None], torch.tensor([5]), torch.tensor([[6]]), torch.tensor(True))
    assert p.bias(3, torch.float32) is None
