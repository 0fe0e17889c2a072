"""What goes into the verifier and what comes out of it.

Letters in shapes: B requests, N tree nodes a request, V target vocabulary, C stored candidates of a proposal law,
P protected tokens.
"""

from typing import NamedTuple

import torch


class Proposals(NamedTuple):
    """The law that the children of each node were drawn from, kept to its C likeliest tokens and renormalised.

    Truncation costs no exactness as long as the children were drawn from the truncated law.

    Attributes:
        ids: int64 [B, N, C]. Target-vocabulary ids, distinct within a node. An id outside ``[0, V)`` is padding.
        probs: same dtype as ``target_probs``, [B, N, C]. Sums to 1 over the candidates of a node that has children.
            An entry that is not in ``(0, 1]`` (zero, negative, NaN, infinite) is padding.
    """

    ids: torch.Tensor
    probs: torch.Tensor


class VerifyResult(NamedTuple):
    """What one verification decided.

    Attributes:
        predict: int32 [B * N]. At the flat index of an accepted node, the token that follows it: the next accepted
            draft, or at the last accepted node the residual or bonus token. 0 elsewhere.
        accept_index: int32 [B, max_depth]. Flat indices ``b * N + i`` of the accepted path from the root, then -1.
        num_correct_drafts: int32 [B]. Accepted drafts: neither the root nor the residual or bonus token counts.
        rescued: int32 [B]. How many of the accepted drafts only the gate accepted.
        tv_bound: dtype of ``target_probs`` (float32), [B]. Its mean over runs bounds the summed total variation between
            the emitted law and the target law over the visited nodes. 0 for a request with threshold 0, and for a node whose
            gate is shut.
    """

    predict: torch.Tensor
    accept_index: torch.Tensor
    num_correct_drafts: torch.Tensor
    rescued: torch.Tensor
    tv_bound: torch.Tensor


class VerifyInputs(NamedTuple):
    """The checked arguments of one ``verify_tree`` call; every backend takes this bundle and nothing else."""

    candidates: torch.Tensor  # int64 [B, N]
    retrieve_next_token: torch.Tensor  # int64 [B, N]
    retrieve_next_sibling: torch.Tensor  # int64 [B, N]
    target_probs: torch.Tensor  # float [B, N, V], last stride 1
    coins: torch.Tensor  # float [B, N]
    final_coins: torch.Tensor  # float [B]
    threshold: torch.Tensor  # float [B]
    max_depth: int
    proposals: Proposals | None
    sibling_coins: torch.Tensor | None  # float [B, N]
    gate_coins: torch.Tensor | None  # float [B, N]
    epsilon: torch.Tensor | None  # float [B]
    protected: torch.Tensor | None  # int64 [B, P]
    ordered_ties: bool
    gate: str  # a name of gates.GATES
