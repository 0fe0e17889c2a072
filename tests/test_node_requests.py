"""Custom logit processors at the nodes of a tree."""

import weakref
from array import array

import pytest
import torch

from nsd_sglang.node_requests import TreeTokens, apply_processors_
from nsd_sglang.tree_paths import parents, paths


class Request:
    """As SGLang's: token ids are arrays, and parameters hold a weak reference."""

    def __init__(self, output_ids):
        self.origin_input_ids, self.output_ids, self.rid = array("q", [1, 2, 3]), array("q", output_ids), "r"


@pytest.fixture
def tokens():
    """Two requests, nodes 0 -> (1 -> 3, 2). The host knows all of the first answer, and lacks [22, 23] of the second."""
    path = paths(parents(torch.tensor([[1, 3, -1, -1]] * 2), torch.tensor([[-1, 2, -1, -1]] * 2), topk=2), 3)
    recent = torch.tensor([[0, 0, 0], [22, 23, 24]])
    valid = torch.tensor([[False] * 3, [True, True, False]])
    nodes = torch.tensor([[12, 13, 14, 15], [24, 25, 26, 27]])
    return TreeTokens([[10, 11, 12], [20, 21]], torch.tensor([2, 4]), recent, valid, nodes, path)


def test_a_node_sees_the_answer_up_to_itself(tokens):
    assert [tokens.output_ids(0, node).tolist() for node in range(4)] == [
        [10, 11, 12],
        [10, 11, 12, 13],
        [10, 11, 12, 14],
        [10, 11, 12, 13, 15],
    ]
    assert tokens.output_ids(1, 3).tolist() == [20, 21, 22, 23, 24, 25, 27]


def test_a_processor_gets_the_rows_of_its_requests_and_the_request_of_each_node(tokens):
    requests = [Request([10, 11, 12]), Request([20, 21])]
    params = [{"bias": i, "__req__": weakref.proxy(request)} for i, request in enumerate(requests)]
    seen = []

    def processor(logits, custom_param_list):
        for line, given in zip(logits, custom_param_list):
            request = given["__req__"]
            seen.append((request.rid, (request.origin_input_ids + request.output_ids).tolist()))
            given["bias"] += 1  # stays at this node
            line[len(request.output_ids)] = given["bias"]
        return logits

    logits = torch.zeros(2, 4, 8)
    apply_processors_(logits, [(processor, [1], torch.tensor([1]))], params, tokens)
    assert not logits[0].any() and params[1]["bias"] == 1
    assert [line.nonzero().tolist() for line in logits[1]] == [[[5]], [[6]], [[6]], [[7]]]
    assert logits[1].max() == 2
    assert seen[3] == ("r", [1, 2, 3, 20, 21, 22, 23, 24, 25, 27])


def test_a_processor_that_asks_for_no_tokens_does_not_wait_for_the_device(tokens):
    def processor(logits, custom_param_list):
        return logits - 1

    logits = torch.zeros(2, 4, 8)
    params = [None, {"ids": [1], "__req__": Request([20])}]
    apply_processors_(logits, [(processor, [0, 1], torch.tensor([0, 1]))], params, tokens)
    assert (logits == -1).all() and tokens._host is None
