"""The verifier: which drafts of a batch of token trees the target model keeps, and what it emits after them.

Nucleus speculative decoding (arXiv 2610.07822) keeps the two draws of speculative decoding (SD) and relaxes its test:
a draft is kept if SD keeps it or if it lies in the target's nucleus.

Words:
    node      one token of a request's draft tree. Node 0, the root, is the last committed token; row i of
              ``target_probs`` is the target's law p of the token that follows node i.
    sibling   one of the children of a node, in the order in which they were drawn.
    SD test   the exact test of a child. Point-mass proposals (``proposals=None``): children are accepted in turn with
              their probability under p. Sampled proposals: recursive rejection (arXiv 2402.14160).
    nucleus   S, the likeliest tokens of p until their mass reaches the threshold theta (Eq. 1 of arXiv 2610.07822):
              x is in S iff p(x) > 0 and the mass of the tokens above x is less than theta.
    gate      what happens once the SD test has failed for every child of a node: the first child in S is taken.
              (Gating inside the loop over siblings accepts in the same events and deviates more: it pre-empts later
              siblings that SD would have taken.)
              Another rule can stand in the nucleus's place, for side by side only: ``gate``, see ``gates.py``.
    accepted  a child that the SD test or the gate took; the walk goes on at that child.
    rescued   an accepted child that only the gate took.
    residual  the law p minus what the failed children were given a chance to cover; the token emitted when a node has
              children and none is accepted is drawn from it.
    bonus     the token emitted after a node without children (or at the depth limit): drawn from p itself.
    budget    epsilon, a bound on the total variation at a node, whatever was emitted before it: a rescue happens only
              with probability beta. Per draw beta = min(1, epsilon / w), where w is the probability, given the children
              drawn, that SD rejects all of them. At a node with one sampled child the law of the child is known, so that
              the budget is one per history: beta = min(1, epsilon / E_S), E_S = sum over S of (q - p)+ without protected
              tokens, the probability of a rescue before the child is drawn. A rescue then has probability
              min(E_S, epsilon), the most that the budget allows. Per draw stay: point-mass proposals (the same there),
              two or more sampled children, a child whose law is not recorded, and every gate but the nucleus.

The gate only decides acceptance. p, the proposals, residual and bonus are never truncated, so threshold 0 is SD.

Bad input never leaves its request, and what is emitted has positive target probability if anything does:
    - an entry of p that is negative, NaN or infinite counts as 0;
    - a token outside the vocabulary is never accepted;
    - a child whose recorded proposal probability is not in (0, 1], or that is not among the stored candidates, is
      skipped by the SD test, which stays exact because the residual is left as it was; the gate may still rescue it;
    - a residual without mass is replaced by p;
    - a residual or bonus draw from a row with a non-finite entry or without mass gives the argmax of its finite entries
      (0 if none is finite);
    - a link outside [0, N) ends its list, and cyclic links end after N - 1 siblings or ``max_depth`` nodes.
"""

from nsd_sglang.kernels.checks import check_inputs
from nsd_sglang.kernels.reference import verify_tree_torch
from nsd_sglang.kernels.types import Proposals, VerifyInputs, VerifyResult

__all__ = ["Proposals", "VerifyResult", "verify_tree"]


def verify_tree(
    candidates,
    retrieve_next_token,
    retrieve_next_sibling,
    target_probs,
    coins,
    final_coins,
    threshold,
    *,
    max_depth,
    proposals=None,
    sibling_coins=None,
    gate_coins=None,
    epsilon=None,
    protected=None,
    ordered_ties=False,
    gate="nucleus",
    backend="auto",
) -> VerifyResult:
    """Verify a batch of draft trees. See the module docstring for the words and for what bad input gives.

    All tensors live on one device. "real" is the dtype of ``target_probs``: float32, or float64 with the torch backend
    (for exact enumeration). Coins are uniform on [0, 1), independent, and each is used for one test only.

    Args:
        candidates: int64 [B, N]. Token of each node.
        retrieve_next_token: int64 [B, N]. First child of a node, -1 if it has none (SGLang's layout).
        retrieve_next_sibling: int64 [B, N]. Next sibling in draw order, -1 if there is none.
        target_probs: real [B, N, V]. p of each node, after every transform the request asked for; rows sum to 1.
            Read in place through its strides; copied only if its last stride is not 1.
        coins: real [B, N]. ``coins[b, i]`` tests the first child of node i (sampled proposals), or is compared with the
            cumulative probability of the children of node i (point-mass proposals).
        final_coins: real [B]. Residual or bonus draw: inverse CDF in token-id order.
        threshold: real [B]. theta in [0, 1], or the parameter of another ``gate``; 0 (or negative, or NaN) is standard
            speculative decoding with every gate.
        max_depth: int. Nodes on the longest root-to-leaf chain, root included; at most ``max_depth - 1`` drafts are
            accepted.
        proposals: ``None`` if the children are a deterministic function of the context (top-k or argmax drafting),
            else the law that the children of each node were drawn from, without replacement.
        sibling_coins: real [B, N]. SD test of a second or later sibling, at that sibling's own index; used only with
            ``proposals``. ``None``: the SD test looks at first children only (still exact, accepts less).
        gate_coins: real [B, N]. Budget coin of a node; needed with ``epsilon``. A coin >= 1 (or NaN) shuts the gate at its
            node, with or without a budget: no rescue happens there, and ``tv_bound`` leaves it out.
        epsilon: real [B]. Total-variation budget of a position; 0 is SD, >= 1 or ``None`` no budget.
        protected: int64 [B, P]. Tokens that a rescue may not emit, padded with -1. SD, residual and bonus still may.
        ordered_ties: False: tokens as likely as x are in the nucleus with x or out with it. True: ties are ordered by
            token id, as in Eq. 1. (The gate "top-m" counts ranks likewise; the others have no ties to break.)
        gate: which rule decides a rescue; one of ``gates.GATES``, where ranges and sources stand. "nucleus", or for side
            by side "greedy-margin" (p(x) >= p_max - m, 0 < m <= 1), "greedy-ratio" (c p(x) >= p_max, c >= 1), "additive"
            (p(x) >= q(x) - a, 0 < a <= 1), "multiplicative" (c p(x) >= q(x), c >= 1), "top-m" (fewer than m tokens above
            x, m = 1, 2, ...) and "typical" (p(x) > min(delta^2, delta exp(-H(p))), 0 < delta <= 1).
        backend: "triton", "torch", or "auto" (Triton on CUDA, torch elsewhere). The Triton backend launches one kernel
            on the current stream and never waits for the device; on CPU tensors it needs ``TRITON_INTERPRET=1``.

    Returns:
        VerifyResult of ``predict`` int32 [B * N], ``accept_index`` int32 [B, max_depth], ``num_correct_drafts`` int32
        [B], ``rescued`` int32 [B] and ``tv_bound`` real [B]. ``tv_bound`` sums a bound over the visited nodes whose
        children were tested and whose gate is open: w, or with a budget min(w, epsilon) where it is per draw and
        min(R, epsilon) where it is per history, R = sum over all tokens of (q - p)+, the mean of w over the draws of
        the child. (There min(w, epsilon) would not do: its mean is at most min(R, epsilon), by Jensen's inequality, and
        may lie below the total variation min(E_S, epsilon).)

    Raises:
        ValueError: an argument has the wrong shape, dtype or device, ``epsilon`` comes without ``gate_coins``, the gate
            is unknown, or the backend is unknown or cannot run on these tensors.

    Example: a chain of one draft that SD rejects (0.9 >= 0.3) and the nucleus keeps (0.6 < 0.8).
        >>> import torch
        >>> p = torch.tensor([[[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]]])
        >>> result = verify_tree(
        ...     torch.tensor([[0, 1]]), torch.tensor([[1, -1]]), torch.tensor([[-1, -1]]), p,
        ...     coins=torch.tensor([[0.9, 0.0]]), final_coins=torch.tensor([0.4]), threshold=torch.tensor([0.8]),
        ...     max_depth=2)
        >>> result.predict.tolist(), result.num_correct_drafts.tolist(), result.rescued.tolist()
        ([1, 1], [1], [1])
    """
    inputs = check_inputs(
        candidates,
        retrieve_next_token,
        retrieve_next_sibling,
        target_probs,
        coins,
        final_coins,
        threshold,
        max_depth=max_depth,
        proposals=proposals,
        sibling_coins=sibling_coins,
        gate_coins=gate_coins,
        epsilon=epsilon,
        protected=protected,
        ordered_ties=ordered_ties,
        gate=gate,
    )
    if backend == "auto":
        backend = "triton" if target_probs.device.type == "cuda" else "torch"
    if backend == "torch":
        return verify_tree_torch(inputs)
    if backend == "triton":
        return _verify_tree_triton(inputs)
    raise ValueError(f'backend: expected "auto", "triton" or "torch", got {backend!r}')


def _verify_tree_triton(inputs: VerifyInputs) -> VerifyResult:
    # Imported late: a CPU server needs no Triton.
    from nsd_sglang.kernels.triton_verify import verify_tree_triton

    return verify_tree_triton(inputs)
