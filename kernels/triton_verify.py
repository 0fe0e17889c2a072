"""The verifier in Triton: one program walks the tree of one request, in one launch.

Along the accepted path the work is a few scalar loads and vectors as wide as the tree or the stored candidates. The
vocabulary is read for a nucleus test that p(x) alone does not settle, and once for the residual or bonus draw.
`reference.py` says the same in plain torch.
"""

import contextlib

import torch
import triton
import triton.language as tl

from nsd_sglang.kernels.triton_row import draw_token, in_nucleus, mass_of
from nsd_sglang.kernels.types import VerifyInputs, VerifyResult

# 32 entries a thread: enough loads in flight for one program to keep an SM's share of the memory bandwidth busy.
MAX_BLOCK = 8192
NUM_WARPS = 8
# ptxas would rather fit a second program on an SM, at the price of spills; with one program a request there is no second.
MAX_REGISTERS = 255
TINY = tl.constexpr(1e-30)  # see reference.TINY


@triton.jit
def _link(ptr, NODES: tl.constexpr):
    """A node index, or -1 for anything outside the tree."""
    node = tl.load(ptr)
    return tl.where((node >= 0) & (node < NODES), node, -1).to(tl.int32)


@triton.jit
def _pick(values, slots, slot):
    """values[slot] as a scalar."""
    return tl.sum(tl.where(slots == slot, values, tl.zeros_like(values)), axis=0)


@triton.jit
def _list_children(
    candidates_ptr,  # int64 [N]
    next_token_ptr,  # int64 [N]
    next_sibling_ptr,  # int64 [N]
    node,
    NODES: tl.constexpr,
    VOCAB: tl.constexpr,
    NODE_BLOCK: tl.constexpr,
):
    """Children in draw order: their nodes, their tokens (-1 if outside the vocabulary or a repeat), their number."""
    slots = tl.arange(0, NODE_BLOCK)
    children = tl.full([NODE_BLOCK], -1, dtype=tl.int32)
    tokens = tl.full([NODE_BLOCK], -1, dtype=tl.int32)
    count = 0
    child = _link(next_token_ptr + node, NODES)
    while (child >= 0) & (count < NODES - 1):
        token = tl.load(candidates_ptr + child)
        token = tl.where((token >= 0) & (token < VOCAB), token, -1).to(tl.int32)
        token = tl.where(tl.max((tokens == token).to(tl.int32), axis=0) == 1, -1, token)
        children = tl.where(slots == count, child, children)
        tokens = tl.where(slots == count, token, tokens)
        count += 1
        child = _link(next_sibling_ptr + child, NODES)
    return children, tokens, count


@triton.jit
def _point_mass_test(masses, slots, coin, NODE_BLOCK: tl.constexpr):
    """SD test of deterministic children: accepted rank (NODE_BLOCK if none) and probability of rejecting all."""
    # Strict, where SGLang's tree kernel has <=: a coin of 0.0 must not accept a token without mass.
    hit = (coin < tl.cumsum(masses, axis=0)) & (masses > 0.0)
    accepted = tl.min(tl.where(hit, slots, NODE_BLOCK), axis=0)
    reject_all = tl.minimum(tl.maximum(1.0 - tl.sum(masses, axis=0), 0.0), 1.0)
    return accepted, reject_all


@triton.jit
def _recursive_rejection(
    row_ptr,  # float32 [V]
    ids_ptr,  # int64 [C]
    q_ptr,  # float32 [C]
    sibling_coins_ptr,  # float32 [N] or None
    coin,
    children,  # int32 [NODE_BLOCK]
    tokens,  # int32 [NODE_BLOCK]
    count,
    gated,  # 1 if the probability of rejecting all is wanted
    VOCAB: tl.constexpr,
    NODE_BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    CANDIDATE_BLOCK: tl.constexpr,
):
    """SD test of sampled children. Only the candidates of q are touched: elsewhere the residual is scale * p.

    Returns accepted rank (NODE_BLOCK if none), probability of rejecting all, and the residual: ids, values, scale.
    """
    slots = tl.arange(0, NODE_BLOCK)
    lanes = tl.arange(0, CANDIDATE_BLOCK)
    ids = tl.load(ids_ptr + lanes, mask=lanes < CANDIDATES, other=-1)
    q = tl.load(q_ptr + lanes, mask=lanes < CANDIDATES, other=0.0)
    kept = (q > 0.0) & (q <= 1.0) & (ids >= 0) & (ids < VOCAB)
    ids = tl.where(kept, ids, -1).to(tl.int32)
    q = tl.where(kept, q, 0.0)
    r = mass_of(tl.load(row_ptr + ids, mask=kept, other=0.0))
    elsewhere = tl.maximum(1.0 - tl.sum(r, axis=0), 0.0)
    scale = 1.0
    r_total = 1.0
    q_total = 1.0
    accepted = NODE_BLOCK
    reject_all = 1.0
    rank = 0
    more = 1
    while (rank < count) & (more == 1):
        token = _pick(tokens, slots, rank)
        here = (ids == token) & (q > 0.0)
        testable = (token >= 0) & (tl.max(here.to(tl.int32), axis=0) == 1)
        if sibling_coins_ptr is None:
            testable = testable & (rank == 0)
        # A child that cannot be tested is skipped: the residual stays exact whatever its law was.
        if testable:
            if r_total > 0.0:
                # Normalised late: a chain's residual (p - q)+ stays free of rounding.
                r = tl.div_rn(r, tl.zeros_like(r) + r_total)
                scale = tl.div_rn(scale, r_total)
                elsewhere = tl.div_rn(elsewhere, r_total)
                q = tl.div_rn(q, tl.zeros_like(q) + q_total)
                u = coin
                if sibling_coins_ptr is not None:
                    if rank > 0:
                        u = tl.load(sibling_coins_ptr + _pick(children, slots, rank))
                q_here = tl.sum(tl.where(here, q, 0.0), axis=0)
                r_here = tl.sum(tl.where(here, r, 0.0), axis=0)
                # The comparison of SGLang's chain sampler: same coins, same decisions.
                if (accepted == NODE_BLOCK) & (r_here > 0.0) & (u * q_here < r_here):
                    accepted = rank
                reject_all *= 1.0 - tl.minimum(tl.div_rn(r_here, q_here), 1.0)
                r = tl.maximum(r - q, 0.0)
                q = tl.where(here, 0.0, q)
                r_total = tl.sum(r, axis=0) + elsewhere
                q_total = tl.maximum(tl.sum(q, axis=0), TINY)
                more = ((accepted == NODE_BLOCK) | ((gated == 1) & (reject_all > 0.0))).to(tl.int32)
            else:
                more = 0
        rank += 1
    return accepted, reject_all, ids, r, scale


@triton.jit
def _gate(
    row_ptr,  # float32 [V]
    protected_ptr,  # int64 [P] or None
    tokens,  # int32 [NODE_BLOCK]
    masses,  # float32 [NODE_BLOCK]
    count,
    theta,
    num_protected,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    NODE_BLOCK: tl.constexpr,
    ORDERED_TIES: tl.constexpr,
):
    """Rank of the first child in the nucleus, NODE_BLOCK if none is."""
    slots = tl.arange(0, NODE_BLOCK)
    if protected_ptr is not None:
        for i in range(num_protected):
            masses = tl.where(tokens == tl.load(protected_ptr + i), 0.0, masses)
    accepted = NODE_BLOCK
    # The nucleus is an upper set: a child below one found outside is outside too, and costs no pass over the row.
    outside_mass = 0.0
    outside_token = 0
    rank = 0
    while (rank < count) & (accepted == NODE_BLOCK):
        mass = _pick(masses, slots, rank)
        token = _pick(tokens, slots, rank)
        if (mass > outside_mass) | ((mass > 0.0) & (mass == outside_mass) & (token < outside_token)):
            if in_nucleus(row_ptr, token, mass, theta, VOCAB, BLOCK, ORDERED_TIES) == 1:
                accepted = rank
            outside_mass = mass
            outside_token = token
        rank += 1
    return accepted


@triton.jit
def verify_tree_kernel(
    candidates_ptr,  # int64 [B, N]
    next_token_ptr,  # int64 [B, N]
    next_sibling_ptr,  # int64 [B, N]
    target_probs_ptr,  # float32 [B, N, V], strides (target_stride_b, target_stride_n, 1)
    coins_ptr,  # float32 [B, N]
    final_coins_ptr,  # float32 [B]
    threshold_ptr,  # float32 [B]
    ids_ptr,  # int64 [B, N, C] or None (point-mass proposals)
    q_ptr,  # float32 [B, N, C] or None
    sibling_coins_ptr,  # float32 [B, N] or None
    gate_coins_ptr,  # float32 [B, N] or None
    epsilon_ptr,  # float32 [B] or None
    protected_ptr,  # int64 [B, P] or None
    predict_ptr,  # int32 [B * N], written whole
    accept_index_ptr,  # int32 [B, MAX_DEPTH], written whole
    num_correct_drafts_ptr,  # int32 [B]
    rescued_ptr,  # int32 [B]
    tv_bound_ptr,  # float32 [B]
    target_stride_b,
    target_stride_n,
    num_protected,
    NODES: tl.constexpr,
    VOCAB: tl.constexpr,
    MAX_DEPTH: tl.constexpr,
    CANDIDATES: tl.constexpr,
    ORDERED_TIES: tl.constexpr,
    NODE_BLOCK: tl.constexpr,  # power of two >= NODES
    DEPTH_BLOCK: tl.constexpr,  # power of two >= MAX_DEPTH
    CANDIDATE_BLOCK: tl.constexpr,  # power of two >= CANDIDATES
    BLOCK: tl.constexpr,  # vocabulary entries read at a time
    NUM_BLOCKS: tl.constexpr,  # power of two, NUM_BLOCKS * BLOCK >= VOCAB
):
    request = tl.program_id(0).to(tl.int64)  # rows times vocabulary exceeds 2**31
    root = request * NODES
    candidates_ptr += root
    next_token_ptr += root
    next_sibling_ptr += root
    coins_ptr += root
    target_probs_ptr += request * target_stride_b
    theta = tl.load(threshold_ptr + request)
    gated = (theta > 0.0).to(tl.int32)
    if epsilon_ptr is not None:
        epsilon = tl.load(epsilon_ptr + request)
        epsilon = tl.where(epsilon > 0.0, epsilon, 0.0)  # a NaN or negative budget allows nothing

    slots = tl.arange(0, NODE_BLOCK)
    path_slots = tl.arange(0, DEPTH_BLOCK)
    predict = tl.zeros([NODE_BLOCK], dtype=tl.int32)
    path = tl.where(path_slots == 0, 0, -1)
    if ids_ptr is None:
        altered_ids = tl.full([NODE_BLOCK], -1, dtype=tl.int32)
        altered = tl.zeros([NODE_BLOCK], dtype=tl.float32)
    else:
        altered_ids = tl.full([CANDIDATE_BLOCK], -1, dtype=tl.int32)
        altered = tl.zeros([CANDIDATE_BLOCK], dtype=tl.float32)
    scale = 1.0
    node = 0
    depth = 0
    rescued = 0
    tv_bound = 0.0
    walking = 1
    while walking == 1:
        row_ptr = target_probs_ptr + node.to(tl.int64) * target_stride_n
        children, tokens, count = _list_children(
            candidates_ptr, next_token_ptr, next_sibling_ptr, node, NODES, VOCAB, NODE_BLOCK
        )
        if (count == 0) | (depth >= MAX_DEPTH - 1):
            # A leaf draws its bonus from p: nothing is altered.
            altered_ids = tl.full(altered_ids.shape, -1, dtype=tl.int32)
            scale = 1.0
            walking = 0
        else:
            masses = mass_of(tl.load(row_ptr + tokens, mask=tokens >= 0, other=0.0))
            coin = tl.load(coins_ptr + node)
            if ids_ptr is None:
                accepted, reject_all = _point_mass_test(masses, slots, coin, NODE_BLOCK)
                altered_ids = tokens
            else:
                stored = (root + node) * CANDIDATES
                accepted, reject_all, altered_ids, altered, scale = _recursive_rejection(
                    row_ptr,
                    ids_ptr + stored,
                    q_ptr + stored,
                    None if sibling_coins_ptr is None else sibling_coins_ptr + root,
                    coin,
                    children,
                    tokens,
                    count,
                    gated,
                    VOCAB,
                    NODE_BLOCK,
                    CANDIDATES,
                    CANDIDATE_BLOCK,
                )
            if gated == 1:
                may_rescue = accepted == NODE_BLOCK
                if epsilon_ptr is None:
                    tv_bound += reject_all
                else:
                    tv_bound += tl.minimum(reject_all, epsilon)
                    # Equal to coin < min(1, epsilon / w), without the division by a w that may be 0.
                    may_rescue = may_rescue & (tl.load(gate_coins_ptr + root + node) * reject_all < epsilon)
                if may_rescue:
                    accepted = _gate(
                        row_ptr,
                        None if protected_ptr is None else protected_ptr + request * num_protected,
                        tokens,
                        masses,
                        count,
                        theta,
                        num_protected,
                        VOCAB,
                        BLOCK,
                        NODE_BLOCK,
                        ORDERED_TIES,
                    )
                    rescued += (accepted < NODE_BLOCK).to(tl.int32)
            if accepted < NODE_BLOCK:
                predict = tl.where(slots == node, _pick(tokens, slots, accepted), predict)
                node = _pick(children, slots, accepted)
                depth += 1
                path = tl.where(path_slots == depth, node, path)
            else:
                walking = 0

    row_ptr = target_probs_ptr + node.to(tl.int64) * target_stride_n
    coin = tl.load(final_coins_ptr + request)
    token = draw_token(row_ptr, altered_ids, altered, scale, coin, VOCAB, BLOCK, NUM_BLOCKS)
    predict = tl.where(slots == node, token, predict)

    # Stored once from registers: a scatter over a zero fill would need a barrier between the two.
    tl.store(predict_ptr + root + slots, predict, mask=slots < NODES)
    path = tl.where(path >= 0, root + path, -1).to(tl.int32)
    tl.store(accept_index_ptr + request * MAX_DEPTH + path_slots, path, mask=path_slots < MAX_DEPTH)
    tl.store(num_correct_drafts_ptr + request, depth)
    tl.store(rescued_ptr + request, rescued)
    tl.store(tv_bound_ptr + request, tv_bound)


def verify_tree_triton(inputs: VerifyInputs) -> VerifyResult:
    """Launch the kernel on the current stream of the tensors' device. Raises ValueError where it cannot run."""
    target_probs = inputs.target_probs
    device = target_probs.device
    if target_probs.dtype != torch.float32:
        raise ValueError(f"target_probs: expected torch.float32 for the Triton backend, got {target_probs.dtype}")
    if device.type == "cpu" and isinstance(verify_tree_kernel, triton.runtime.JITFunction):
        raise ValueError(
            "backend: Triton runs on CPU tensors only with TRITON_INTERPRET=1 set before triton is imported; "
            'use backend="torch"'
        )
    batch, nodes, vocab = target_probs.shape
    result = VerifyResult(
        predict=torch.empty(batch * nodes, dtype=torch.int32, device=device),
        accept_index=torch.empty((batch, inputs.max_depth), dtype=torch.int32, device=device),
        num_correct_drafts=torch.empty(batch, dtype=torch.int32, device=device),
        rescued=torch.empty(batch, dtype=torch.int32, device=device),
        tv_bound=torch.empty(batch, dtype=torch.float32, device=device),
    )
    if batch == 0:
        return result
    ids, q = (None, None) if inputs.proposals is None else inputs.proposals
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        verify_tree_kernel[(batch,)](
            inputs.candidates,
            inputs.retrieve_next_token,
            inputs.retrieve_next_sibling,
            target_probs,
            inputs.coins,
            inputs.final_coins,
            inputs.threshold,
            ids,
            q,
            inputs.sibling_coins,
            inputs.gate_coins,
            inputs.epsilon,
            inputs.protected,
            *result,
            target_probs.stride(0),
            target_probs.stride(1),
            0 if inputs.protected is None else inputs.protected.shape[1],
            ORDERED_TIES=inputs.ordered_ties,
            **kernel_shape(nodes, vocab, inputs.max_depth, 0 if ids is None else ids.shape[2]),
            **launch_options(torch.version.hip is not None),
        )
    return result


def kernel_shape(nodes: int, vocab: int, max_depth: int, candidates: int) -> dict[str, int]:
    """Compile-time sizes of the kernel; `candidates` is 0 for point-mass proposals."""
    # Small widths share a size: one compilation less when a server changes its tree.
    block = min(MAX_BLOCK, triton.next_power_of_2(max(vocab, 16)))
    return dict(
        NODES=nodes,
        VOCAB=vocab,
        MAX_DEPTH=max_depth,
        CANDIDATES=candidates,
        NODE_BLOCK=triton.next_power_of_2(max(nodes, 16)),
        DEPTH_BLOCK=triton.next_power_of_2(max(max_depth, 16)),
        CANDIDATE_BLOCK=triton.next_power_of_2(max(candidates, 16)),
        BLOCK=block,
        NUM_BLOCKS=triton.next_power_of_2(triton.cdiv(vocab, block)),
    )


def launch_options(hip: bool) -> dict[str, int]:
    """Options of the compiler; AMD's has no register limit."""
    return {"num_warps": NUM_WARPS} if hip else {"num_warps": NUM_WARPS, "maxnreg": MAX_REGISTERS}
