"""Exact law of one node and of a tree, written from the definitions: dense vectors, a sort for the nucleus, no coins.

Independent of the reference: nothing here is shared with nsd_sglang.kernels.
"""

import math
from dataclasses import dataclass

import torch


def nucleus(p, theta, ordered):
    """S as a bool vector, by sorting: tokens in order of probability (then id) until the mass reaches theta."""
    inside = torch.zeros(len(p), dtype=torch.bool)
    if theta <= 0:
        return inside
    order = sorted(range(len(p)), key=lambda x: (-p[x].item(), x))
    reached = 0.0
    for x in order:
        if p[x] <= 0 or reached >= theta - 1e-12:
            break
        inside[x] = True
        reached += p[x].item()
    if not ordered and inside.any():
        inside |= p >= p[inside].min()
    return inside & (p > 0)


def kept(gate, p, q, parameter, ordered=False):
    """The tokens that a rule keeps, as a bool vector: one token at a time, ranks by a sort. q None: point masses."""
    if gate == "nucleus":
        return nucleus(p, parameter, ordered)
    values = p.tolist()
    draft = [1.0] * len(values) if q is None else q.tolist()
    ranking = sorted(range(len(values)), key=lambda x: (-values[x], x))
    entropy = sum(-x * math.log(x) for x in values if x > 0)
    inside = torch.zeros(len(values), dtype=torch.bool)
    for x, mass in enumerate(values):
        if mass <= 0 or not parameter > 0:
            continue
        inside[x] = {
            "greedy-margin": mass >= max(values) - parameter,
            "greedy-ratio": mass * parameter >= max(values),
            "additive": draft[x] > 0 and mass >= draft[x] - parameter,
            "multiplicative": draft[x] > 0 and mass * parameter >= draft[x],
            "top-m": (ranking.index(x) if ordered else sum(y > mass for y in values)) < parameter,
            "typical": mass > min(parameter**2, parameter * math.exp(-entropy)),
        }[gate]
    return inside


@dataclass
class Node:
    """Given the children drawn. Vectors over children (draw order) unless said otherwise."""

    sd_accept: list  # probability that SD accepts child j (having rejected those before)
    tests: list  # edge of the coin of child j: SD takes it if coin < edge (point mass: the node's one coin)
    reject_all: float  # w
    rescue: int  # child that the gate would take, -1
    beta: float  # probability that the budget lets it
    residual: torch.Tensor  # law over V

    @property
    def rescue_mass(self):
        return self.reject_all * self.beta if self.rescue >= 0 else 0.0


def node(p, q, tokens, theta, epsilon=None, protected=(), ordered=False, gate="nucleus") -> Node:
    """q None: point-mass proposals. p, q float64 [V]. theta: parameter of the gate."""
    inside = kept(gate, p, q, theta, ordered)
    q_drawn = q
    sd_accept, tests, r, reached, missed = [], [], p.clone(), 0.0, 1.0
    if q is None:
        for j, token in enumerate(tokens):
            mass = 0.0 if token in tokens[:j] else p[token].item()
            reached += mass
            sd_accept.append(mass)
            tests.append(reached)
            r[token] = 0
        missed = 1 - reached
    else:
        q = q.clone()
        for token in tokens:
            a = min(1.0, (r[token] / q[token]).item())
            sd_accept.append(missed * a)
            tests.append(a)
            missed *= 1 - a
            r = (r - q).clamp(min=0)
            r = r / r.sum() if r.sum() > 1e-14 else r
            q[token] = 0
            q = q / q.sum() if q.sum() > 0 else q
    residual = r / r.sum() if r.sum() > 1e-14 else p
    rescue = next((j for j, x in enumerate(tokens) if inside[x] and x not in protected), -1)
    missed = max(missed, 0.0)
    chance = missed
    if q_drawn is not None and len(tokens) == 1 and gate == "nucleus":  # one budget for all draws of the child
        chance = sum(max((q_drawn[x] - p[x]).item(), 0.0) for x in range(len(p)) if inside[x] and x not in protected)
    beta = 1.0 if epsilon is None or epsilon >= chance else epsilon / chance
    return Node(sd_accept, tests, missed, rescue, beta, residual)


def sequences(i, kids, candidates, p, q, depth, **gate):
    """{(emitted tokens, drafts accepted, rescues): probability} of the tree under node i. `kids[i]` lists children."""
    law = {}

    def add(outcome, mass):
        if mass > 0:
            law[outcome] = law.get(outcome, 0.0) + mass

    tokens = [candidates[k] for k in kids[i]] if depth > 1 else []
    if not tokens:
        for x, mass in enumerate(p[i].tolist()):
            add(((x,), 0, 0), mass)
        return law
    here = node(p[i], None if q is None else q[i], tokens, **gate)
    for j, k in enumerate(kids[i]):
        below = sequences(k, kids, candidates, p, q, depth - 1, **gate)
        for (emitted, drafts, rescues), mass in below.items():
            add(((tokens[j], *emitted), drafts + 1, rescues), mass * here.sd_accept[j])
            if j == here.rescue:
                add(((tokens[j], *emitted), drafts + 1, rescues + 1), mass * here.rescue_mass)
    for x, mass in enumerate(here.residual.tolist()):
        add(((x,), 0, 0), mass * (here.reject_all - here.rescue_mass))
    return law


def emitted_first(here: Node, tokens, vocab):
    """Law over V of the token emitted at the node, given the children drawn."""
    law = here.residual * (here.reject_all - here.rescue_mass)
    for j, token in enumerate(tokens):
        law[token] += here.sd_accept[j] + (here.rescue_mass if j == here.rescue else 0.0)
    return law


def draws(q, count):
    """All ordered draws of `count` tokens from q without replacement, with their probabilities."""
    found = [((), 1.0)]
    for _ in range(count):
        longer = []
        for tokens, mass in found:
            left = 1.0 - sum(q[x].item() for x in tokens)
            for x in range(len(q)):
                if x not in tokens and q[x] > 0 and left > 1e-12:
                    longer.append(((*tokens, x), mass * q[x].item() / left))
        found = longer
    return found
