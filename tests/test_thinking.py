"""The reasoning span on the device, against a recount token by token."""

import random
from types import SimpleNamespace

import pytest
import torch

from nsd_sglang.thinking import ThinkingSpans, advance, inside_after, inside_at_nodes

START, END = 1, 2
IDS = (START, END)


def recount(tokens, inside=False):
    for token in tokens:
        inside = True if token == START else False if token == END else inside
    return inside


def random_tree(generator, nodes, topk):
    """Links of a random tree in SGLang's layout, and each node's parent."""
    children, parents = {0: []}, [0] * nodes
    for node in range(1, nodes):
        parents[node] = generator.choice([n for n in range(node) if len(children[n]) < topk])
        children[parents[node]].append(node)
        children[node] = []
    first = [children[n][0] if children[n] else -1 for n in range(nodes)]
    sibling = [-1] * nodes
    for family in children.values():
        for left, right in zip(family, family[1:]):
            sibling[left] = right
    return first, sibling, parents


def test_a_prompt_is_inside_after_its_last_marker():
    for tokens, inside in (([], False), ([5, START, 6], True), ([START, 5, END, 6], False), ([END, START], True)):
        assert inside_after(tokens, IDS) is inside


@pytest.mark.parametrize("topk", [1, 2, 3])
def test_nodes_agree_with_a_recount_of_their_paths(topk):
    generator = random.Random(topk)
    for _ in range(40):
        nodes = generator.randint(2, 8)
        first, sibling, parents = random_tree(generator, nodes, topk)
        tokens = [generator.choice([START, END, 5, 6]) for _ in range(nodes)]
        inside = generator.random() < 0.5
        links = torch.tensor([first]), torch.tensor([sibling])
        found = inside_at_nodes(torch.tensor([inside]), torch.tensor([tokens]), *links, nodes, topk, IDS)
        for node in range(nodes):
            path, above = [tokens[node]], node
            while above:
                above = parents[above]
                path.insert(0, tokens[above])
            assert found[0, node].item() is recount(path, inside)


def test_advance_counts_only_a_requests_own_tokens():
    generator = random.Random(0)
    tokens = torch.tensor([[generator.choice([START, END, 5]) for _ in range(5)] for _ in range(50)])
    counts = torch.tensor([generator.randint(0, 5) for _ in range(50)])
    inside = torch.tensor([generator.random() < 0.5 for _ in range(50)])
    expected = [recount(t[:n], i) for t, n, i in zip(tokens.tolist(), counts.tolist(), inside.tolist())]
    assert advance(inside, tokens, counts, IDS).tolist() == expected


def test_slots_follow_their_requests_and_a_reused_slot_starts_anew():
    spans = ThinkingSpans(IDS)
    batch = SimpleNamespace(
        req_pool_indices=torch.tensor([3, 1]),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(5, 1)),
        reqs=[SimpleNamespace(origin_input_ids=[5, START], output_ids=[]), SimpleNamespace(origin_input_ids=[5], output_ids=[])],
    )
    spans.begin(batch)
    assert spans.before(batch).tolist() == [True, False]
    # Node 0 of the second request opens its span; the first one's accepted draft closes it; bonus tokens wait.
    spans.commit(batch, torch.tensor([5, START]), torch.tensor([[END, START], [END, END]]), torch.tensor([1, 0]))
    assert spans.before(batch).tolist() == [False, True]
    batch.reqs[0] = SimpleNamespace(origin_input_ids=[5], output_ids=[START])  # retracted: its answer is its prompt now
    spans.begin(batch)
    assert spans.before(batch).tolist() == [True, False]
