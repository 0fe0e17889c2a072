"""The verifier in Triton: one program walks the tree of one request, in one launch.

Along the accepted path the work is a few scalar loads and vectors as wide as the tree or the stored candidates. The
vocabulary is read for a gate that p(x) alone does not settle, and once for the residual or bonus draw.
`reference.py` says the same in plain torch.
"""

import contextlib

import torch
import triton
import triton.language as tl

from nsd_sglang.kernels.triton_budget import rescue_within_history
from nsd_sglang.kernels.triton_gates import gate
from nsd_sglang.kernels.triton_node import list_children, pick, point_mass_test, recursive_rejection
from nsd_sglang.kernels.triton_row import draw_token, mass_of
from nsd_sglang.kernels.types import VerifyInputs, VerifyResult

# 32 entries a thread: enough loads in flight for one program to keep an SM's share of the memory bandwidth busy.
MAX_BLOCK = 8192
NUM_WARPS = 8
# ptxas would rather fit a second program on an SM, at the price of spills; decoding batches rarely fill the SMs once.
MAX_REGISTERS = 255


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
    GATE: tl.constexpr,  # a name of gates.GATES
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
        children, tokens, count = list_children(
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
                accepted, reject_all = point_mass_test(masses, slots, coin, NODE_BLOCK)
                mean_reject = -1.0
                altered_ids = tokens
            else:
                stored = (root + node) * CANDIDATES
                accepted, reject_all, mean_reject, altered_ids, altered, scale = recursive_rejection(
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
            open_gate = gated
            if gate_coins_ptr is not None:
                gate_coin = tl.load(gate_coins_ptr + root + node)
                open_gate = gated & (gate_coin < 1.0).to(tl.int32)
            if open_gate == 1:
                undecided = accepted == NODE_BLOCK
                if epsilon_ptr is None:
                    tv_bound += reject_all
                else:
                    if GATE != "nucleus":
                        mean_reject = -1.0
                    per_history = mean_reject >= 0.0
                    tv_bound += tl.minimum(tl.where(per_history, mean_reject, reject_all), epsilon)
                    if ids_ptr is not None and GATE == "nucleus":
                        if undecided & per_history:
                            kept = rescue_within_history(
                                row_ptr,
                                ids_ptr + stored,
                                q_ptr + stored,
                                None if protected_ptr is None else protected_ptr + request * num_protected,
                                pick(tokens, slots, 0),
                                gate_coin,
                                epsilon,
                                theta,
                                num_protected,
                                VOCAB,
                                BLOCK,
                                CANDIDATES,
                                CANDIDATE_BLOCK,
                                ORDERED_TIES,
                            )
                            accepted = tl.where(kept == 1, 0, accepted)
                            rescued += kept
                    # Equal to coin < min(1, epsilon / w), without the division by a w that may be 0.
                    undecided = undecided & (mean_reject < 0.0) & (gate_coin * reject_all < epsilon)
                if undecided:
                    accepted = gate(
                        row_ptr,
                        None if protected_ptr is None else protected_ptr + request * num_protected,
                        None if ids_ptr is None else ids_ptr + (root + node) * CANDIDATES,
                        None if q_ptr is None else q_ptr + (root + node) * CANDIDATES,
                        tokens,
                        masses,
                        count,
                        theta,
                        num_protected,
                        VOCAB,
                        BLOCK,
                        NODE_BLOCK,
                        CANDIDATES,
                        CANDIDATE_BLOCK,
                        ORDERED_TIES,
                        GATE,
                    )
                    rescued += (accepted < NODE_BLOCK).to(tl.int32)
            if accepted < NODE_BLOCK:
                predict = tl.where(slots == node, pick(tokens, slots, accepted), predict)
                node = pick(children, slots, accepted)
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
            GATE=inputs.gate,
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
