"""Random inputs of verify_tree, and its answers compared with the reference's."""

import torch

from nsd_sglang.kernels.verify import Proposals, verify_tree

THETAS = (0.0, 0.3, 0.8, 0.95, 1.0)


def tree_links(parents: list[int], batch: int = 1):
    """retrieve_next_token and retrieve_next_sibling of the tree in which node i + 1 hangs under parents[i]."""
    nodes = len(parents) + 1
    first, sibling, last = [-1] * nodes, [-1] * nodes, {}
    for node, parent in enumerate(parents, start=1):
        if parent in last:
            sibling[last[parent]] = node
        else:
            first[parent] = node
        last[parent] = node
    return torch.tensor([first] * batch), torch.tensor([sibling] * batch)


CHAIN = [0, 1, 2, 3]
TREE = [0, 0, 0, 1, 1, 2, 4, 4, 4, 7, 7]


def random_case(
    seed,
    parents,
    vocab,
    *,
    sampled,
    batch=5,
    width=8,
    epsilon=False,
    protected=False,
    ordered=False,
    strided=False,
    noise=None,
) -> dict:
    """Arguments of verify_tree with a mixture of SD acceptances, rescues and rejections."""
    g = torch.Generator().manual_seed(seed)
    nodes, width = len(parents) + 1, min(width, vocab)
    first, sibling = tree_links(parents, batch)
    logits = torch.randn(batch, nodes, vocab, generator=g) * 4
    p = torch.softmax(logits, -1)
    if ordered:  # coarse probabilities: many ties
        p = torch.softmax((logits / 2).round() * 2, -1)
    if noise is None:
        noise = 2.0 if sampled else 0.7
    draft = torch.softmax(logits * 0.8 + torch.randn(batch, nodes, vocab, generator=g) * noise, -1)
    q, ids = draft.topk(width, -1)
    q = q / q.sum(-1, keepdim=True)
    candidates = torch.randint(vocab, (batch, nodes), generator=g)
    for parent in set(parents):
        children = [i + 1 for i, x in enumerate(parents) if x == parent]
        for b in range(batch):
            if sampled:
                slots = torch.multinomial(q[b, parent], len(children), generator=g)
            else:
                slots = torch.randperm(width, generator=g)[: len(children)]
            candidates[b, children] = ids[b, parent, slots]
    depth, depths = {0: 1}, []
    for node, parent in enumerate(parents, start=1):
        depth[node] = depth[parent] + 1
        depths.append(depth[node])
    case = dict(
        candidates=candidates,
        retrieve_next_token=first,
        retrieve_next_sibling=sibling,
        target_probs=p,
        coins=torch.rand(batch, nodes, generator=g),
        final_coins=torch.rand(batch, generator=g),
        threshold=torch.tensor([THETAS[(seed + b) % len(THETAS)] for b in range(batch)]),
        max_depth=max(depths),
        ordered_ties=ordered,
    )
    if sampled:
        case["proposals"] = Proposals(ids, q)
        case["sibling_coins"] = torch.rand(batch, nodes, generator=g)
    if epsilon:
        case["epsilon"] = torch.tensor([(0.05, 0.3, 0.0, 2.0)[b % 4] for b in range(batch)])
        case["gate_coins"] = torch.rand(batch, nodes, generator=g)
        case["gate_coins"][torch.rand(batch, nodes, generator=g) < 0.125] = 1.0  # shut gates
    if protected:
        case["protected"] = torch.full((batch, 3), -1)
        case["protected"][:, :2] = candidates[:, 1:3]
    if strided:
        case = {name: _strided(name, value) for name, value in case.items()}
    return case


def _strided(name, value):
    """The same values in memory laid out otherwise."""
    if isinstance(value, Proposals):
        return Proposals(_strided("ids", value.ids), _strided("probs", value.probs))
    if not isinstance(value, torch.Tensor):
        return value
    if name == "target_probs":
        room = torch.full([size + 3 for size in value.shape], float("nan"))
        view = room[1:-2, 2:-1, 1:-2]
    else:
        room = torch.full([2 * size for size in value.shape], 7, dtype=value.dtype)
        view = room[tuple(slice(None, None, 2) for _ in value.shape)]
    return view.copy_(value)


def agrees(cases, run) -> bool:
    """Whether `run(case)` gives the reference's tokens, paths and counts, and its bound on the deviation."""
    for case in cases:
        expected, got = verify_tree(**case, backend="torch"), run(case)
        same = all(x.equal(y) for x, y in zip(got[:4], expected[:4]))
        if not same or not torch.allclose(got.tv_bound, expected.tv_bound, atol=1e-5):
            return False
    return True
