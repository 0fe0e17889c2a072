"""The verifier in plain torch: the meaning of the Triton kernel, and the backend of CPU servers.

Works in the dtype of ``target_probs``, so float64 inputs give exact enumerations. A loop over requests and visited
nodes; a row of V is read only for a nucleus test that needs it and for the last draw.
"""

import math

import torch

from nsd_sglang.kernels.gates import GATES
from nsd_sglang.kernels.reference_budget import rescue_probability
from nsd_sglang.kernels.reference_gates import RULES
from nsd_sglang.kernels.types import VerifyInputs, VerifyResult

TINY = 1e-30  # keeps 0 / 0 out of the renormalised q once its last candidate has been tried


def verify_tree_torch(inputs: VerifyInputs) -> VerifyResult:
    """Verify on any device; on a GPU it waits for the device (the Triton backend does not)."""
    device, real = inputs.target_probs.device, inputs.target_probs.dtype
    batch, nodes, _ = inputs.target_probs.shape
    request = _Requests(inputs)

    predict = [0] * (batch * nodes)
    accept_index = [[-1] * inputs.max_depth for _ in range(batch)]
    num_correct_drafts, rescued, tv_bound = [0] * batch, [0] * batch, [0.0] * batch
    for b in range(batch):
        node, depth = 0, 0
        accept_index[b][0] = b * nodes
        while True:
            children = request.children(b, node) if depth < inputs.max_depth - 1 else []
            row = inputs.target_probs[b, node]
            if not children:
                token = _draw(row, None, request.final_coins[b])
                break
            accepted, reject_all, residual = request.sd_test(b, node, row, children)
            if request.threshold[b] > 0.0 and request.gate_is_open(b, node):
                surplus = request.known_surplus(b, node, children)
                bound = reject_all if surplus is None else surplus.sum().item()
                tv_bound[b] += bound if request.epsilon is None else min(bound, request.epsilon[b])
                if accepted is None:
                    accepted = request.gate(b, node, row, children, reject_all, surplus)
                    rescued[b] += accepted is not None
            if accepted is None:
                token = _draw(row, residual, request.final_coins[b])
                break
            predict[b * nodes + node] = request.candidates[b][accepted]
            node, depth = accepted, depth + 1
            accept_index[b][depth] = b * nodes + node
        predict[b * nodes + node] = token
        num_correct_drafts[b] = depth

    def int32(values, *shape):
        return torch.tensor(values, dtype=torch.int32, device=device).reshape(shape)

    return VerifyResult(
        predict=int32(predict, batch * nodes),
        accept_index=int32(accept_index, batch, inputs.max_depth),
        num_correct_drafts=int32(num_correct_drafts, batch),
        rescued=int32(rescued, batch),
        tv_bound=torch.tensor(tv_bound, dtype=real, device=device),
    )


class _Requests:
    """The small tensors as Python lists, and the tests of one node."""

    def __init__(self, inputs: VerifyInputs):
        def listed(tensor):
            return None if tensor is None else tensor.tolist()

        self.inputs = inputs
        _, self.nodes, self.vocab = inputs.target_probs.shape
        self.candidates = inputs.candidates.tolist()
        self.next_token = inputs.retrieve_next_token.tolist()
        self.next_sibling = inputs.retrieve_next_sibling.tolist()
        self.coins = inputs.coins.tolist()
        self.final_coins = inputs.final_coins.tolist()
        self.threshold = inputs.threshold.tolist()
        self.gate_coins = listed(inputs.gate_coins)
        # A NaN or negative budget allows nothing.
        self.epsilon = None if inputs.epsilon is None else [e if e > 0.0 else 0.0 for e in inputs.epsilon.tolist()]
        self.protected = listed(inputs.protected)
        if inputs.proposals is not None:
            self._gather_candidates(*inputs.proposals)

    def _gather_candidates(self, ids, probs):
        """Candidates of all nodes: ids (-1 for padding), q and p there, and the mass of p elsewhere."""
        kept = (probs > 0) & (probs <= 1) & (ids >= 0) & (ids < self.vocab)
        p = self.inputs.target_probs.gather(2, torch.where(kept, ids, 0))
        self.ids = torch.where(kept, ids, -1)
        self.q = torch.where(kept, probs, 0)
        self.r = torch.where(kept & (p > 0) & (p < math.inf), p, 0)
        self.elsewhere = (1.0 - self.r.sum(2)).clamp_min(0).tolist()

    def children(self, b: int, node: int) -> list[int]:
        """Nodes of the children in draw order; at most N - 1, so that cyclic links end."""
        found: list[int] = []
        child = self.next_token[b][node]
        while 0 <= child < self.nodes and len(found) < self.nodes - 1:
            found.append(child)
            child = self.next_sibling[b][child]
        return found

    def sd_test(self, b, node, row, children):
        """The SD test of all children.

        Returns the accepted child or None, the probability w given these children that SD rejects all of them (not
        computed, hence meaningless, if the threshold is 0), and the residual as (ids, values, scale): `values` at
        `ids`, `scale` times p elsewhere.
        """
        tokens = [self.candidates[b][child] for child in children]
        if self.inputs.proposals is None:
            return self._point_mass(b, node, row, children, tokens)
        return self._recursive_rejection(b, node, row, children, tokens)

    def _point_mass(self, b, node, row, children, tokens):
        coin, covered, accepted, seen = self.coins[b][node], 0.0, None, []
        for child, token in zip(children, tokens):
            if not 0 <= token < self.vocab or token in seen:
                continue
            seen.append(token)
            mass = _mass(row[token].item())
            covered += mass
            # Strict, where SGLang's tree kernel has <=: a coin of 0.0 must not accept a token without mass.
            if accepted is None and mass > 0.0 and coin < covered:
                accepted = child
        ids = torch.tensor(seen, dtype=torch.int64, device=row.device)
        values = torch.zeros(len(seen), dtype=row.dtype, device=row.device)
        return accepted, min(max(1.0 - covered, 0.0), 1.0), (ids, values, 1.0)

    def _recursive_rejection(self, b, node, row, children, tokens):
        """Recursive rejection over the candidates only: elsewhere the residual stays proportional to p."""
        sibling_coins = self.inputs.sibling_coins
        ids, q, r, elsewhere = self.ids[b, node], self.q[b, node], self.r[b, node], self.elsewhere[b][node]
        slots = {token: slot for slot, token in enumerate(ids.tolist()) if token >= 0}
        scale, total, accepted, reject_all, tried = 1.0, 1.0, None, 1.0, None
        for rank, (child, token) in enumerate(zip(children, tokens)):
            slot = slots.pop(token, None)
            if slot is None or (rank > 0 and sibling_coins is None):
                continue  # Skipping a proposal, whatever its law, leaves the residual exact.
            if tried is not None:  # Move r and q past the last failure, normalised.
                r, total = self._subtract(r, q, elsewhere)
                if total <= 0.0:
                    return accepted, reject_all, (ids, r, scale)
                r, scale, elsewhere = r / total, scale / total, elsewhere / total
                q = q.clone()
                q[tried] = 0
                q = q / q.sum().clamp_min(TINY)
            tried = slot
            coin = self.inputs.coins[b, node] if rank == 0 else sibling_coins[b, child]
            q_slot, r_slot = q[slot], r[slot]
            # In the dtype of the tensors, and the comparison of SGLang's chain sampler: same coins, same decisions.
            if accepted is None and r_slot > 0 and coin * q_slot < r_slot:
                accepted = child
                if not self.threshold[b] > 0.0:
                    break
            reject_all *= 1.0 - min((r_slot / q_slot).item(), 1.0)
            if accepted is not None and reject_all == 0.0:
                break
        if accepted is None and tried is not None:
            # Not normalised: a chain's residual (p - q)+ stays free of rounding.
            r, _ = self._subtract(r, q, elsewhere)
        return accepted, reject_all, (ids, r, scale)

    @staticmethod
    def _subtract(r, q, elsewhere):
        r = (r - q).clamp_min(0)
        return r, r.sum().item() + elsewhere

    def gate_is_open(self, b, node) -> bool:
        return self.gate_coins is None or self.gate_coins[b][node] < 1.0

    def known_surplus(self, b, node, children):
        """(q - p)+ of the stored candidates, [C], where the budget is one per history; None where it is one per draw."""
        if self.epsilon is None or self.inputs.proposals is None or len(children) != 1 or self.inputs.gate != "nucleus":
            return None
        if not (self.ids[b, node] == self.candidates[b][children[0]]).any():  # -1 is padding, and no token either
            return None
        return (self.q[b, node] - self.r[b, node]).clamp_min(0)

    def gate(self, b, node, row, children, reject_all, surplus):
        """First child that the gate's rule keeps, unless the budget coin says no. Called when the SD test failed
        everywhere."""
        if surplus is None and not self._affords(b, node, reject_all):
            return None
        rescue = self._first_kept(b, node, row, children)
        if rescue is None or surplus is None:
            return rescue
        ids = self.ids[b, node]
        if self.protected is not None:
            surplus = surplus.masked_fill(torch.isin(ids, self.inputs.protected[b]), 0)
        chance = rescue_probability(row, ids, self.r[b, node], surplus, self.threshold[b], self.inputs.ordered_ties)
        return rescue if self._affords(b, node, chance) else None

    def _affords(self, b, node, probability) -> bool:
        # Equal to coin < min(1, epsilon / probability), without the division by a probability that may be 0.
        return self.epsilon is None or self.gate_coins[b][node] * probability < self.epsilon[b]

    def _first_kept(self, b, node, row, children):
        rule, upper = RULES[self.inputs.gate], GATES[self.inputs.gate].upper
        outside = (0.0, 0)  # likeliest token that an upper set was found to leave out, as (p, -id)
        for child in children:
            token = self.candidates[b][child]
            if not 0 <= token < self.vocab or (self.protected is not None and token in self.protected[b]):
                continue
            mass = _mass(row[token].item())
            # A token below one that is outside an upper set is outside too.
            if mass <= 0.0 or mass < outside[0] or (mass == outside[0] and -token <= outside[1]):
                continue
            q = 0.0 if upper else self.recorded(b, node, token)
            if rule(row, token, mass, q, self.threshold[b], self.inputs.ordered_ties):
                return child
            if upper:
                outside = (mass, -token)
        return None

    def recorded(self, b, node, token) -> float:
        """q(token): 1 for point-mass proposals, 0 if no usable probability is stored for it."""
        if self.inputs.proposals is None:
            return 1.0
        return self.q[b, node][self.ids[b, node] == token].sum().item()


def _mass(p: float) -> float:
    return p if 0.0 < p < math.inf else 0.0


def _draw(row, residual, coin: float) -> int:
    """Inverse CDF in token-id order of the residual, or of the row itself if there is none."""
    values = row
    if residual is not None:
        ids, altered, scale = residual
        values = row * scale if scale != 1.0 else row.clone()
        values[ids[ids >= 0]] = altered[ids >= 0]
    if not torch.isfinite(row.sum()) and not torch.isfinite(row).all():
        return _argmax_finite(row)
    sums = values.clamp_min(0).cumsum(0)
    total = sums[-1].item()
    if not 0.0 < total < math.inf:
        return _argmax_finite(row) if residual is None else _draw(row, None, coin)
    # right=True: the first token whose cumulative mass exceeds the coin's, so it has mass. A NaN coin counts as 0.
    token = torch.searchsorted(sums, coin * total if coin > 0.0 else 0.0, right=True).item()
    if token < len(sums):
        return token
    # The coin rounded up to the total: the last token with mass.
    return values.gt(0).nonzero()[-1].item()


def _argmax_finite(row) -> int:
    finite = torch.isfinite(row)
    return torch.where(finite, row, -math.inf).argmax().item() if finite.any() else 0
