"""Shape, dtype and device checks of ``verify_tree``: done once, on the host, without reading any value."""

import torch

from nsd_sglang.kernels.gates import GATES
from nsd_sglang.kernels.types import Proposals, VerifyInputs

_MAX_VOCAB = 2**31 - 1  # predict is int32


def check_inputs(
    candidates,
    retrieve_next_token,
    retrieve_next_sibling,
    target_probs,
    coins,
    final_coins,
    threshold,
    *,
    max_depth,
    proposals,
    sibling_coins,
    gate_coins,
    epsilon,
    protected,
    ordered_ties,
    gate,
) -> VerifyInputs:
    """Bundle the arguments of ``verify_tree``, or raise ValueError naming the one that does not fit."""
    if not isinstance(target_probs, torch.Tensor) or target_probs.dim() != 3:
        raise ValueError(f"target_probs: expected a tensor of shape [B, N, V], got {_describe(target_probs)}")
    real = target_probs.dtype
    if real not in (torch.float32, torch.float64):
        raise ValueError(f"target_probs: expected float32 (float64 for the torch backend), got {real}")
    batch, nodes, vocab = target_probs.shape
    if nodes < 1 or not 1 <= vocab <= _MAX_VOCAB:
        raise ValueError(f"target_probs: expected N >= 1 and 1 <= V < 2**31, got {_describe(target_probs)}")
    if isinstance(max_depth, bool) or not isinstance(max_depth, int) or max_depth < 1:
        raise ValueError(f"max_depth: expected an int >= 1, got {max_depth!r}")
    if gate not in GATES:
        raise ValueError(f"gate: expected one of {', '.join(GATES)}, got {gate!r}")
    device = target_probs.device

    def small(name, tensor, dtype, shape):
        """Contiguous `tensor`, checked; only the vocabulary-wide tensor is never copied."""
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected {dtype} {list(shape)}, got {_describe(tensor)}")
        if tensor.device != device:
            raise ValueError(f"{name}: expected a tensor on {device} like target_probs, got {tensor.device}")
        return tensor.contiguous()

    per_node, per_request = (batch, nodes), (batch,)
    if proposals is not None:
        if not isinstance(proposals, Proposals):
            raise ValueError(f"proposals: expected Proposals or None, got {type(proposals).__name__}")
        ids, probs = proposals
        if not isinstance(ids, torch.Tensor) or ids.dim() != 3 or ids.shape[2] < 1:
            raise ValueError(f"proposals.ids: expected torch.int64 [{batch}, {nodes}, C >= 1], got {_describe(ids)}")
        wide = (batch, nodes, ids.shape[2])
        proposals = Proposals(
            small("proposals.ids", ids, torch.int64, wide), small("proposals.probs", probs, real, wide)
        )
    if protected is not None:
        if not isinstance(protected, torch.Tensor) or protected.dim() != 2:
            raise ValueError(f"protected: expected torch.int64 [{batch}, P], got {_describe(protected)}")
        protected = small("protected", protected, torch.int64, (batch, protected.shape[1]))
        if protected.shape[1] == 0:
            protected = None
    if epsilon is not None and gate_coins is None:
        raise ValueError(f"gate_coins: expected {real} {list(per_node)} because epsilon is given, got None")

    return VerifyInputs(
        candidates=small("candidates", candidates, torch.int64, per_node),
        retrieve_next_token=small("retrieve_next_token", retrieve_next_token, torch.int64, per_node),
        retrieve_next_sibling=small("retrieve_next_sibling", retrieve_next_sibling, torch.int64, per_node),
        target_probs=target_probs if target_probs.stride(2) == 1 else target_probs.contiguous(),
        coins=small("coins", coins, real, per_node),
        final_coins=small("final_coins", final_coins, real, per_request),
        threshold=small("threshold", threshold, real, per_request),
        max_depth=max_depth,
        proposals=proposals,
        sibling_coins=None if sibling_coins is None else small("sibling_coins", sibling_coins, real, per_node),
        gate_coins=None if gate_coins is None else small("gate_coins", gate_coins, real, per_node),
        epsilon=None if epsilon is None else small("epsilon", epsilon, real, per_request),
        protected=protected,
        ordered_ties=bool(ordered_ties),
        gate=gate,
    )


def _describe(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
