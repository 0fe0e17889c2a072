"""The logits and the law of every node of a verify step, as plain decoding would have them.

SGLang's verify step knows the penalties of a step before, the same for every node, and neither min-p nor custom logit
processors. `NodeLogits` stands around its `eagle_sample`: it applies what plain decoding applies, in plain decoding's order
(penalties, grammar, bias, processors; softmax; top-k, top-p, min-p), and lets `eagle_sample` do the rest. A batch in which
no request asks for any of it passes through untouched.

Shapes: B requests, N nodes, D nodes on the longest path, V tokens, R of the B requests.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import numpy as np
import torch

from nsd_sglang import sampling_filters
from nsd_sglang.node_requests import TreeTokens, apply_processors_
from nsd_sglang.path_penalties import Penalties, count_tokens, forbid_stop_, penalise_
from nsd_sglang.recent_tokens import RecentTokens
from nsd_sglang.request_rows import padded, stop_ids, to_device
from nsd_sglang.tree_paths import parents, paths


class NodeLogits:
    """Around `eagle_sample` (`sample`) and around the sampling kernel that it calls (`filtered`).

    Args:
        joint_filters: the plain sampler takes top-k and top-p of the whole row even in a batch with min-p (torch backend).
    """

    def __init__(self, joint_filters: bool):
        self._joint_filters = joint_filters
        self._recent: RecentTokens | None = None
        self._info: Any = None

    def sample(
        self,
        stock: Callable[..., Any],
        verify_input: Any,
        batch: Any,
        logits_output: Any,
        grammar_mask: Any,
        **rest: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`eagle_sample` with the batch's sampling inputs honoured at each node; same result."""
        info = batch.sampling_info
        penalised = info is not None and not (info.acc_additive_penalties is None and info.acc_scaling_penalties is None)
        processed = info is not None and info.has_custom_logit_processor
        filtered = info is not None and (info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling)
        if batch.forward_mode.is_idle() or not (penalised or processed or filtered):
            return stock(verify_input, batch, logits_output, grammar_mask, **rest)

        left = dict(need_top_k_sampling=False, need_top_p_sampling=False)  # to `eagle_sample`
        if penalised or processed:
            tree = _Tree(verify_input, batch, self._recent_tokens(verify_input, batch))
            logits = logits_output.next_token_logits.view(*tree.tokens.shape, -1)
            left |= dict(acc_additive_penalties=None, acc_scaling_penalties=None)
        if penalised:
            _penalise_(logits, batch, tree)
        if processed:
            if grammar_mask is not None:
                grammar_mask.apply(logits_output.next_token_logits)
                grammar_mask = None
            if info.logit_bias is not None:
                logits.add_(info.logit_bias.unsqueeze(1))
            left |= dict(logit_bias=None)
            entries = [(entry.processor, entry.rows, entry.indices) for entry in info.custom_logit_processor.values()]
            apply_processors_(logits, entries, info.custom_params, tree.host_tokens())

        self._info, batch.sampling_info = info, dataclasses.replace(info, **left)
        try:
            predict, accept_lens, accept_index = stock(verify_input, batch, logits_output, grammar_mask, **rest)
        finally:
            self._info, batch.sampling_info = None, info
        if penalised or processed:
            accepted = predict[accept_index.long().clamp_min(0)]
            self._recent.record(batch.req_pool_indices, accepted, batch.seq_lens + 1, accept_lens)
        return predict, accept_lens, accept_index

    def filtered(self, kernel: Callable[..., None]) -> Callable[..., None]:
        """`kernel` with top-k, top-p and min-p applied to its `target_probs` first."""

        def sample_tree(*, target_probs: torch.Tensor, **arguments: Any) -> None:
            if self._info is not None:
                target_probs = self._filter(target_probs)
            kernel(target_probs=target_probs, **arguments)

        return sample_tree

    def _filter(self, target_probs: torch.Tensor) -> torch.Tensor:
        from sglang.srt.speculative.eagle_utils import top_k_renorm_prob, top_p_renorm_prob

        info, (batch, nodes, vocabulary) = self._info, target_probs.shape

        def per_node(values: torch.Tensor) -> torch.Tensor:
            return values.view(-1, 1).expand(batch, nodes).reshape(-1)

        probs = target_probs.view(-1, vocabulary)
        top_ks, top_ps = per_node(info.top_ks), per_node(info.top_ps)
        jointly = self._joint_filters or not info.need_min_p_sampling
        if jointly and info.need_top_k_sampling and info.need_top_p_sampling:
            probs = sampling_filters.joint(probs, top_ks, top_ps, top_k_renorm_prob, top_p_renorm_prob)
        else:
            if info.need_top_k_sampling:
                probs = top_k_renorm_prob(probs, top_ks)
            if info.need_top_p_sampling:
                probs = top_p_renorm_prob(probs, top_ps)
        if info.need_min_p_sampling:
            probs = sampling_filters.min_p_(probs, per_node(info.min_ps))
        if info.is_any_greedy:
            probs = sampling_filters.greedy_(probs, top_ks <= 1)
        return probs.view(batch, nodes, vocabulary)

    def _recent_tokens(self, verify_input: Any, batch: Any) -> RecentTokens:
        if self._recent is None:
            slots = batch.req_to_token_pool.req_to_token.shape[0]
            self._recent = RecentTokens(slots, verify_input.max_tree_depth, batch.device)
        return self._recent


class _Tree:
    """One verify step: its nodes, and how much of each answer the host knows."""

    def __init__(self, verify_input: Any, batch: Any, recent: RecentTokens):
        self.tokens = verify_input.draft_token.view(verify_input.retrieve_next_token.shape)  # int64 [B, N]
        parent = parents(verify_input.retrieve_next_token, verify_input.retrieve_next_sibling, verify_input.topk)
        self.path = paths(parent, verify_input.max_tree_depth)  # int64 [B, N, D]
        self.known = [req.output_ids for req in batch.reqs]
        lengths = [(len(req.origin_input_ids), len(req.output_ids)) for req in batch.reqs]
        self.prompt_lens, self.known_lens = to_device(np.array(lengths, np.int64), batch.device).unbind(1)
        # The root stands at position seq_lens; what was committed before it counts as the answer so far.
        self.committed_lens = batch.seq_lens.long() - self.prompt_lens
        self.recent, self.recent_valid = recent.between(
            batch.req_pool_indices, self.prompt_lens + self.known_lens, batch.seq_lens.long()
        )

    def host_tokens(self) -> TreeTokens:
        return TreeTokens(self.known, self.committed_lens, self.recent, self.recent_valid, self.tokens, self.path)


def _penalise_(logits: torch.Tensor, batch: Any, tree: _Tree) -> None:
    """Penalties and `min_new_tokens` of the requests that have them, in place. logits: float [B, N, V]."""
    params = [req.sampling_params for req in batch.reqs]
    rows = [
        i
        for i, p in enumerate(params)
        if p.frequency_penalty != 0 or p.presence_penalty != 0 or p.repetition_penalty != 1
    ]
    if rows:
        given = [(params[i].frequency_penalty, params[i].presence_penalty, params[i].repetition_penalty) for i in rows]
        penalties = Penalties(*to_device(np.array(given, np.float32), logits.device).unbind(1))
        index = to_device(np.array(rows, np.int64), logits.device)
        counts = _committed_counts([tree.known[i] for i in rows], index, tree, logits.shape[2])
        penalise_(logits, index, counts, tree.tokens[index], tree.path[index], penalties)
    # The host may know a block less than is committed: the exact test is on the device.
    short = [i for i, p in enumerate(params) if len(tree.known[i]) < p.min_new_tokens and stop_ids(batch.reqs[i])]
    if short:
        index = to_device(np.array(short, np.int64), logits.device)
        stops = to_device(padded([stop_ids(batch.reqs[i]) for i in short]), logits.device)
        minimum = to_device(np.array([params[i].min_new_tokens for i in short], np.int64), logits.device)
        depth = (tree.path[index] != 0).sum(-1)  # int64 [R, N]
        answer_len = tree.committed_lens[index].unsqueeze(1) + 1 + depth  # before the token about to be drawn
        forbid_stop_(logits, index, answer_len < minimum.unsqueeze(1), stops)


def _committed_counts(known: list[Any], index: torch.Tensor, tree: _Tree, vocabulary: int) -> torch.Tensor:
    """Counts of what was committed before the root, float32 [R, V]: what the host knows of it, and the last block."""
    tokens = to_device(padded(known), index.device)
    place = torch.arange(tokens.shape[1], device=index.device)
    limit = torch.minimum(tree.known_lens[index], tree.committed_lens[index])
    tokens = torch.cat((tokens, tree.recent[index]), dim=1)
    valid = torch.cat((place < limit.unsqueeze(1), tree.recent_valid[index]), dim=1)
    return count_tokens(tokens, valid, vocabulary)
