"""SGLang's two sampling verifiers in torch, for stock speculative decoding without a GPU.

The names of the arguments are those of SGLang's kernels, spelling included. B requests, n nodes with the root,
V tokens; `predicts` [B * n], `accept_index` [B, depth] and `accept_token_num` [B] are written in place.
"""

from __future__ import annotations

import numpy as np
import torch


def tree_speculative_sampling_target_only(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    uniform_samples,
    uniform_samples_for_final_sampling,
    target_probs,
    draft_probs,
    threshold_single=1.0,
    threshold_acc=1.0,
    deterministic=True,
) -> None:
    """Walk down each tree, one coin per level: siblings split the unit interval by their target probability.

    A child is taken when the coin lies below the sum of the children seen so far, divided by `threshold_acc`, or when its
    own probability reaches `threshold_single`; never at probability 0. When none is, the token is drawn from what
    the rejected children leave of the target.

    Args:
        candidates, retrive_*: [B, n] int64.
        uniform_samples: [B, n] float32, the coin of the level below a node; uniform_samples_for_final_sampling: [B].
        target_probs, draft_probs: [B, n, V] float32; the second is scratch, zero on entry.
    """
    depth = accept_index.shape[1]
    probs, coins = target_probs.numpy(), uniform_samples.numpy()
    threshold_acc = np.float32(max(threshold_acc, 1e-9))
    tokens, rows = candidates.tolist(), retrive_index.tolist()
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    final_nodes = []
    for b, row in enumerate(rows):
        path, emitted, node, at = [row[0]], [], child[b][0], 0
        mass, coin = np.float32(0.0), coins[b, 0]
        while node != -1 and len(path) < depth:
            token = tokens[b][node]
            prob = probs[b, at, token]
            mass += prob
            if prob > 0 and (coin < mass / threshold_acc or prob >= threshold_single):
                path.append(row[node])
                emitted.append(token)
                mass, coin, at, node = np.float32(0.0), coins[b, node], node, child[b][node]
            else:
                draft_probs[b, at, token] = target_probs[b, at, token]
                node = sibling[b][node]
        final_nodes.append(at)
        _write_path(predicts, accept_index[b], accept_token_num[b : b + 1], path, emitted)

    batch = torch.arange(len(rows))
    left = target_probs[batch, final_nodes]
    # At full depth the token is a bonus from the untouched target; there is no draft to subtract.
    rejected = draft_probs[batch, final_nodes] * (accept_token_num < depth - 1)[:, None]
    _sample_last(predicts, accept_index, accept_token_num, (left - rejected).clamp_(min=0.0), uniform_samples_for_final_sampling)


def chain_speculative_sampling(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    uniform_samples,
    uniform_samples_for_final_sampling,
    target_probs,
    draft_probs,
    threshold_single,
    threshold_acc,
    deterministic,
    *,
    block_verification=False,
) -> None:
    """Rejection sampling of a chain against the distributions its tokens were drawn from.

    A token x is accepted when coin * q(x) < p(x); at the first rejection the token is drawn from the positive part of
    p - q. With `block_verification` the longest prefix that the joint test accepts is taken instead.

    Args:
        candidates, retrive_index: [B, n] int64, the chain in order.
        uniform_samples: [B, n] float32; uniform_samples_for_final_sampling: [B].
        target_probs: [B, n, V] float32. draft_probs: [B, n - 1, V] float32; an entry outside [0, 1] counts as 0.
    """
    steps = candidates.shape[1] - 1
    drafted = candidates[:, 1:, None]
    p = target_probs[:, :steps].gather(2, drafted)[:, :, 0]
    q = draft_probs.gather(2, drafted)[:, :, 0]
    proposed = (q > 0) & (q <= 1)
    scale = torch.ones(candidates.shape[0])
    if block_verification:
        accepted, scale = _longest_block(p, q, proposed, uniform_samples, target_probs, draft_probs)
    else:
        passed = proposed & (uniform_samples[:, :steps] * q < p)
        accepted = passed.int().cumprod(1).sum(1)
    tokens, rows = candidates.tolist(), retrive_index.tolist()
    for b, num in enumerate(accepted.tolist()):
        _write_path(predicts, accept_index[b], accept_token_num[b : b + 1], rows[b][: num + 1], tokens[b][1 : num + 1])

    batch = torch.arange(candidates.shape[0])
    left = target_probs[batch, accepted]
    drawn = draft_probs[batch, accepted.clamp(max=steps - 1)]
    drawn = torch.where((drawn >= 0) & (drawn <= 1), drawn, 0.0)
    residual = (scale[:, None] * left - drawn).clamp_(min=0.0)
    weights = torch.where((accepted == steps)[:, None], left, residual)
    _sample_last(predicts, accept_index, accept_token_num, weights, uniform_samples_for_final_sampling, fallback=-1)


def _longest_block(p, q, proposed, coins, target_probs, draft_probs):
    """Accepted prefix of every request by block verification (arXiv 2403.10444, algorithm 2), and the weight its last
    prefix gives the target in the residual."""
    batch, steps = p.shape
    prefix, running = [], torch.ones(batch)
    for step in range(steps):
        ratio = torch.where(proposed[:, step], running * p[:, step] / q[:, step], 0.0)
        running = ratio.clamp(max=1.0)
        prefix.append(running)
    accepted, scale = torch.zeros(batch, dtype=torch.int64), torch.ones(batch)
    for step in range(steps, 0, -1):
        weight = prefix[step - 1]
        chance = weight
        if step < steps:
            mass = (weight[:, None] * target_probs[:, step] - draft_probs[:, step]).clamp_(min=0.0).sum(-1)
            partial = (weight > 0) & (weight < 1)
            chance = torch.where(partial, mass / (mass + 1.0 - weight), weight)
        coin = coins[:, step - 1]
        take = (accepted == 0) & (coin < weight) & (coin < chance)
        accepted, scale = torch.where(take, step, accepted), torch.where(take, weight, scale)
    return accepted, scale


def _write_path(predicts, accept_index, accept_token_num, path, emitted) -> None:
    """Record one request's accepted nodes (`path`, with the root) and the tokens that lead from each to the next."""
    accept_index[: len(path)] = torch.tensor(path)
    accept_token_num[0] = len(emitted)
    predicts[path[:-1]] = torch.tensor(emitted, dtype=predicts.dtype)


def _sample_last(predicts, accept_index, accept_token_num, weights, coins, fallback=None) -> None:
    """Draw the token after each accepted path from `weights` [B, V], not normalised, with `coins` [B].

    When rounding leaves the coin beyond the last weight the token is `fallback`, by default the last of positive weight.
    """
    vocab = weights.shape[1]
    cdf = weights.cumsum(-1)
    drawn = torch.searchsorted(cdf, (coins * cdf[:, -1])[:, None], right=True)[:, 0]
    last = torch.full_like(drawn, vocab - 1)
    if fallback is None:
        positive = (weights > 0).flip(-1)
        last = torch.where(positive.any(-1), vocab - 1 - positive.int().argmax(-1), last)
    drawn = torch.where(drawn < vocab, drawn, last)
    node = accept_index.gather(1, accept_token_num.long()[:, None])[:, 0].long()
    predicts[node] = drawn.to(predicts.dtype)
