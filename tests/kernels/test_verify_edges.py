"""Coins at the edges, rows and links that make no sense: on both backends, the defined result and nothing else."""

import kernel_interpreter
import pytest
import torch
from kernel_cases import CHAIN, TREE, random_case, tree_links

from nsd_sglang.kernels.verify import Proposals, verify_tree

LAST_COIN = 1 - 2**-24
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["torch", "triton"])
def verify(request):
    if request.param == "torch":
        return lambda case: verify_tree(**case, backend="torch")
    interpreter = request.getfixturevalue("interpreter")
    return lambda case: interpreter(kernel_interpreter.verify, case)


def one(rows, parents, tokens, *, coin=0.5, final=0.5, theta=0.0, q=None, ids=None, sibling=0.5, **more):
    """One request; `rows` are p of its nodes, `tokens` its drafts."""
    p = torch.tensor([rows])
    nodes = len(rows)
    first, siblings = tree_links(parents)
    case = dict(
        candidates=torch.tensor([[0, *tokens]]),
        retrieve_next_token=first,
        retrieve_next_sibling=siblings,
        target_probs=p,
        coins=torch.full((1, nodes), coin),
        final_coins=torch.tensor([final]),
        threshold=torch.tensor([theta]),
        max_depth=nodes,
    )
    if q is not None:
        ids = list(range(len(q))) if ids is None else ids
        case["proposals"] = Proposals(torch.tensor([[ids] * nodes]), torch.tensor([[q] * nodes]))
        case["sibling_coins"] = torch.full((1, nodes), sibling)
    return case | more


def outcome(result):
    """Emitted tokens and number of rescues of the single request."""
    drafts = result.num_correct_drafts.item()
    path = result.accept_index[0, : drafts + 1].tolist()
    assert path[0] == 0 and (result.accept_index[0, drafts + 1 :] == -1).all()
    return [result.predict[i].item() for i in path], result.rescued.item()


QUARTERS = [0.25, 0.25, 0.0, 0.5]


def test_final_coin_at_the_edges_of_the_cdf(verify):
    for coin, token in [(0.0, 0), (0.25, 1), (0.5, 3), (0.5 - 2**-25, 1), (LAST_COIN, 3)]:
        assert outcome(verify(one([QUARTERS], [], [], final=coin))) == ([token], 0)
    assert outcome(verify(one([[0.0, 0.5, 0.5, 0.0]], [], [], final=0.0))) == ([1], 0)
    assert outcome(verify(one([[0.0, 0.5, 0.5, 0.0]], [], [], final=LAST_COIN))) == ([2], 0)


def test_point_mass_coin_at_the_edges(verify):
    def drafts(coin, tokens):
        rows = [QUARTERS] * (len(tokens) + 1)
        return verify(one(rows, [0] * len(tokens), tokens, coin=coin)).num_correct_drafts.item()

    assert drafts(0.25 - 2**-25, [0]) == 1 and drafts(0.25, [0]) == 0
    assert drafts(0.0, [2]) == 0, "p = 0 is never accepted"
    assert drafts(0.5 - 2**-25, [0, 1]) == 1 and drafts(0.5, [0, 1]) == 0
    assert drafts(0.3, [0, 0]) == 0, "a repeated sibling counts once"
    assert drafts(LAST_COIN, [3, 0, 1]) == 1


def test_sampled_coin_at_the_edges(verify):
    def drafts(coin, token, q):
        return verify(one([QUARTERS] * 2, [0], [token], coin=coin, q=q)).num_correct_drafts.item()

    q = [0.5, 0.125, 0.125, 0.25]
    assert drafts(0.5 - 2**-25, 0, q) == 1 and drafts(0.5, 0, q) == 0
    assert drafts(LAST_COIN, 1, q) == 1
    assert drafts(0.0, 2, q) == 0, "p = 0 is never accepted"


def test_second_sibling_uses_its_own_coin(verify):
    # After token 0 fails, r = (0, 1, 0, 2) / 3 and q = (0, 1, 1, 2) / 4: token 3 is accepted whatever the coin.
    q = [0.5, 0.125, 0.125, 0.25]
    case = one([QUARTERS] * 3, [0, 0], [0, 3], coin=0.9, sibling=LAST_COIN, q=q)
    assert outcome(verify(case))[0][0] == 3
    # Without proposal mass beyond p nothing of token 2 is ever accepted.
    case = one([QUARTERS] * 3, [0, 0], [0, 2], coin=0.9, sibling=0.0, q=q)
    assert outcome(verify(case)) == ([3], 0)


def test_gate_takes_a_tied_sibling_with_a_smaller_id(verify):
    """Ordered ties: token 3 is outside, token 1 as likely and inside, token 2 below both."""
    ties = [0.1, 0.375, 0.15, 0.375]
    case = one([ties] * 4, [0, 0, 0], [3, 2, 1], coin=0.95, theta=0.375, ordered_ties=True)
    emitted, rescued = outcome(verify(case))
    assert emitted[0] == 1 and rescued == 1
    assert outcome(verify(case | {"ordered_ties": False}))[0][0] == 3
    above_all = case | {"candidates": torch.tensor([[0, 2, 0, 3]])}
    assert outcome(verify(above_all)) == ([1], 0)


def test_threshold_one_takes_every_token_with_mass(verify):
    """Whatever rounding does to the mass above it, here 1.0 in float32."""
    row = [1.0, 2.0**-30, 0.0]
    assert outcome(verify(one([row] * 2, [0], [1], coin=0.9, theta=1.0)))[1] == 1
    assert outcome(verify(one([row] * 2, [0], [2], coin=0.9, theta=1.0))) == ([0], 0)


def test_unusable_proposals_leave_sd_exact(verify):
    """The child is skipped and the replacement comes from p; the gate may still take it."""
    for bad in (0.0, NAN, -0.5, INF, 1.5):
        case = one([QUARTERS] * 2, [0], [0], coin=0.0, final=0.0, q=[bad, 0.5, 0.25, 0.25])
        assert outcome(verify(case)) == ([0], 0)
        gated = case | {"threshold": torch.tensor([0.8])}
        assert outcome(verify(gated)) == ([0, 0], 1)
        assert verify(gated).tv_bound.item() == 1.0
    absent = one([QUARTERS] * 2, [0], [0], coin=0.0, final=0.0, q=[0.5, 0.5], ids=[1, 3])
    assert outcome(verify(absent)) == ([0], 0)
    padded = one([QUARTERS] * 2, [0], [0], coin=0.0, q=[0.5, 0.5, 0.0], ids=[0, -7, 2**40])
    assert outcome(verify(padded))[0][0] == 0
    second = one([QUARTERS] * 3, [0, 0], [2, 3], sibling=0.4, final=0.0, q=[0.0, 0.0, NAN, 1.0])
    assert outcome(verify(second))[0][0] == 3, "the second child is tested against p itself"


def test_residual_without_mass_falls_back_to_p(verify):
    for theta in (0.0, 0.3):
        case = one([QUARTERS] * 2, [0], [0], coin=0.9, final=0.3, theta=theta, q=[1.0, 1.0, 1.0, 1.0])
        assert outcome(verify(case)) == ([1], 0)
    covered = one([[0.5, 0.5, 0.0, 0.0]] * 3, [0, 0], [0, 1], coin=NAN, final=0.6)
    assert outcome(verify(covered)) == ([1], 0), "all of p is covered by failed children"


def test_unusable_target_rows(verify):
    for row, token in [
        ([NAN] * 4, 0),
        ([0.0] * 4, 0),
        ([0.1, NAN, 0.3, 0.2], 2),
        ([0.1, INF, 0.3, 0.3], 2),
        ([-INF, -2.0, -1.0, NAN], 2),
        ([INF] * 4, 0),
    ]:
        assert outcome(verify(one([row], [], []))) == ([token], 0)
        for proposals in ({}, {"q": [0.25] * 4}):
            drafted = verify(one([row, QUARTERS], [0], [1], theta=0.9, coin=0.6, **proposals))
            assert outcome(drafted) == ([token], 0)
    assert outcome(verify(one([[-0.5, 0.5, 0.5, 0.0]], [], [], final=0.0))) == ([1], 0)


def test_coins_that_are_no_coins(verify):
    assert outcome(verify(one([QUARTERS] * 2, [0], [0], coin=NAN, final=NAN))) == ([1], 0)
    assert outcome(verify(one([QUARTERS] * 2, [0], [2], coin=-1.0, final=-1.0))) == ([0], 0)
    assert outcome(verify(one([QUARTERS] * 2, [0], [2], coin=-1.0, final=2.0, q=[0.25] * 4)))[0] in ([1], [3])
    assert outcome(verify(one([QUARTERS] * 2, [0], [0], coin=0.9, theta=NAN))) == ([3], 0)


def test_ids_outside_the_vocabulary(verify):
    for token in (-1, 4, 2**33, -(2**40)):
        for proposals in ({}, {"q": [0.25] * 4}):
            emitted, rescued = outcome(verify(one([QUARTERS] * 2, [0], [token], coin=0.0, theta=1.0, **proposals)))
            assert rescued == 0 and len(emitted) == 1 and emitted[0] in (0, 1, 3)


def test_links_outside_the_tree_and_cycles(verify):
    case = one([QUARTERS] * 3, [0, 1], [0, 3], coin=0.0)
    for link in (3, -5, 2**40):
        broken = case | {"retrieve_next_token": torch.tensor([[1, link, -1]])}
        assert len(outcome(verify(broken))[0]) == 2
    cyclic = case | {"retrieve_next_token": torch.tensor([[1, 0, -1]]), "max_depth": 7}
    assert len(outcome(verify(cyclic))[0]) == 7
    for proposals in ({}, {"q": [0.25] * 4}):
        case = one([QUARTERS] * 3, [0, 0], [2, 2], coin=0.9, **proposals)
        case["retrieve_next_sibling"] = torch.tensor([[-1, 2, 1]])
        assert outcome(verify(case))[0] in ([1], [3])


@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
def test_bad_requests_never_touch_their_neighbours(verify, sampled):
    case = random_case(3, TREE, 40, sampled=sampled, batch=6, epsilon=True)
    good = verify(case)
    p, candidates, links = (case[name].clone() for name in ("target_probs", "candidates", "retrieve_next_sibling"))
    p[0], p[2, 0], candidates[2], links[4] = NAN, INF, 10**12, 10**6
    bad = case | {"target_probs": p, "candidates": candidates, "retrieve_next_sibling": links}
    if sampled:
        ids, q = (x.clone() for x in case["proposals"])
        ids[0], q[2], q[4] = -3, NAN, -1.0
        bad["proposals"] = Proposals(ids, q)
    result = verify(bad)
    for name, value in result._asdict().items():
        for b in (1, 3, 5):
            assert value.reshape(6, -1)[b].equal(getattr(good, name).reshape(6, -1)[b]), (name, b)
    assert ((0 <= result.predict) & (result.predict < 40)).all()


def test_theta_zero_ignores_every_option(verify):
    """Budget, ties and protected tokens change nothing at all without a nucleus."""
    for sampled in (False, True):
        case = random_case(5, CHAIN, 30, sampled=sampled, batch=8, epsilon=True, protected=True)
        case["threshold"] = torch.zeros(8)
        plain = {name: v for name, v in case.items() if name not in ("epsilon", "gate_coins", "protected")}
        for x, y in zip(verify(case | {"ordered_ties": True}), verify(plain)):
            assert x.equal(y)
        assert (verify(case).tv_bound == 0).all() and (verify(case).rescued == 0).all()


def test_chain_at_theta_zero_decides_as_the_stock_sampler(verify):
    """Draft i is kept iff coins[i - 1] * q < p in float32, up to the first that is not."""
    for seed in range(6):
        case = random_case(seed, CHAIN, 30, sampled=True, batch=8)
        case["threshold"] = torch.zeros(8)
        ids, q = case["proposals"]
        for b, drafts in enumerate(verify(case).num_correct_drafts.tolist()):
            expected = 0
            for i in range(4):
                token = case["candidates"][b, i + 1]
                q_token = q[b, i][ids[b, i] == token]
                if not (case["coins"][b, i] * q_token < case["target_probs"][b, i, token]).item():
                    break
                expected += 1
            assert drafts == expected
