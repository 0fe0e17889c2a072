"""Penalties along the paths of random trees, against a recount of every path."""

import random

import pytest
import torch

from nsd_sglang.path_penalties import Penalties, count_tokens, forbid_stop_, penalise_
from nsd_sglang.recent_tokens import RecentTokens
from nsd_sglang.tree_paths import parents, paths

V = 11


def random_tree(rng, nodes, depth, topk):
    """Parents in draft order, and SGLang's links."""
    parent, level, children = [0], [0], [0]
    while len(parent) < nodes:
        above = rng.choice([i for i in range(len(parent)) if level[i] < depth - 1 and children[i] < topk])
        children[above] += 1
        parent.append(above)
        level.append(level[above] + 1)
        children.append(0)
    first, sibling, last = [-1] * nodes, [-1] * nodes, {}
    for i in range(1, nodes):
        if parent[i] in last:
            sibling[last[parent[i]]] = i
        else:
            first[parent[i]] = i
        last[parent[i]] = i
    return parent, first, sibling


@pytest.fixture(params=range(4))
def trees(request):
    """Three trees of 12 nodes, at most 5 deep, at most 4 children; few tokens, so that paths repeat them."""
    rng = random.Random(request.param)
    made = [random_tree(rng, 12, 5, 4) for _ in range(3)]
    tokens = torch.tensor([[rng.randrange(V) for _ in range(12)] for _ in made])
    return made, tokens, rng


def way_up(parent, node):
    way = [node]
    while way[-1] != 0:
        way.append(parent[way[-1]])
    return way


def linked(made):
    return parents(torch.tensor([t[1] for t in made]), torch.tensor([t[2] for t in made]), topk=4)


def test_paths_lead_to_the_root(trees):
    made, _, _ = trees
    assert linked(made).tolist() == [tree[0] for tree in made]
    path = paths(linked(made), 5)
    for b, (parent, _, _) in enumerate(made):
        for node in range(12):
            way = way_up(parent, node)
            assert path[b, node].tolist() == way + [0] * (5 - len(way))


def test_a_chain_needs_no_sibling_pass():
    links = torch.tensor([[1, 2, 3, -1]])
    assert parents(links, torch.full((1, 4), -1), topk=1).tolist() == [[0, 0, 1, 2]]


@pytest.mark.parametrize("chunk", [1, 1 << 24])
def test_every_node_is_penalised_as_its_path_is_in_plain_decoding(trees, chunk, monkeypatch):
    monkeypatch.setattr("nsd_sglang.path_penalties._CHUNK_ELEMENTS", chunk)
    made, tokens, rng = trees
    rows = [2, 0]  # request 1 has no penalties
    given = [(0.7, 0.9, 1.3), (-1.1, 0.4, 0.8)]
    history = torch.tensor([[rng.randrange(V) for _ in range(6)] for _ in rows])
    valid = torch.arange(6) < torch.tensor([[6], [4]])
    logits = torch.randn(3, 12, V, generator=torch.Generator().manual_seed(rng.randrange(99)))
    expected = logits.clone()
    for k, row in enumerate(rows):
        for node in range(12):
            answer = history[k][valid[k]].tolist() + [int(tokens[row, i]) for i in way_up(made[row][0], node)]
            expected[row, node] = plain(logits[row, node], answer, *given[k])
    counts = count_tokens(history, valid, V)
    index = torch.tensor(rows)
    penalties = Penalties(*torch.tensor(given).unbind(1))
    penalise_(logits, index, counts, tokens[index], paths(linked(made), 5)[index], penalties)
    torch.testing.assert_close(logits, expected)


def plain(logits, answer, frequency, presence, repetition):
    out = []
    for token, logit in enumerate(logits.tolist()):
        times = answer.count(token)
        if times:
            logit -= times * frequency + presence
            logit = logit * repetition if logit < 0 else logit / repetition
        out.append(logit)
    return torch.tensor(out)


def test_stop_tokens_are_forbidden_where_it_is_too_early():
    logits = torch.zeros(3, 2, V)
    too_early = torch.tensor([[True, False], [False, True]])
    forbid_stop_(logits, torch.tensor([0, 2]), too_early, torch.tensor([[3, 7], [5, 5]]))
    gone = {(0, 0, 3), (0, 0, 7), (2, 1, 5)}
    assert set(map(tuple, (logits == float("-inf")).nonzero().tolist())) == gone


def test_the_last_block_fills_the_gap_between_what_the_host_knows_and_the_root():
    recent = RecentTokens(slots=4, width=3, device="cpu")
    slots = torch.tensor([3, 1])
    recent.record(slots, torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([20, 30]), torch.tensor([3, 2]))

    def seen(slot, start, end):
        tokens, valid = recent.between(torch.tensor([slot]), torch.tensor([start]), torch.tensor([end]))
        return tokens[valid].tolist()

    assert seen(3, 20, 22) == [5, 6]  # nothing of the block known; its last token is the root
    assert seen(3, 23, 22) == []  # all of it known
    assert seen(1, 30, 33) == [8, 9]  # entries behind the length never count
    assert seen(3, 40, 41) == [] and seen(3, 11, 12) == []  # another owner of the slot
    assert seen(0, 0, 100) == []  # never used
    recent.record(torch.tensor([0]), torch.tensor([[1, 2, 3, 4]]), torch.tensor([7]), torch.tensor([4]))  # a longer step
    assert seen(0, 7, 99) == [1, 2, 3, 4] and seen(3, 20, 22) == [5, 6]
