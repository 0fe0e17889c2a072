"""The paper's own figures, for a table beside ours. Its tables by pair are not reproduced here."""

from __future__ import annotations

PAPER = "arXiv 2610.07822"
PAPER_URL = "https://arxiv.org/abs/2610.07822"
SETTING = (
    "The paper measured other models, drafts, machines and engines (Qwen3-4B, 8B and 14B with EAGLE-3 heads and Qwen3.5-4B with its "
    "own multi-token-prediction layers, on GPUs), so its speed-ups are not a target for another pair."
)
MEAN_OVER_SD = ("throughput, NSD / standard speculative decoding, mean over its pairs", 1.85, "its results")
MOST_OVER_SD = ("throughput, NSD / standard speculative decoding, highest", 3.15, "abstract")
MOST_OVER_PLAIN = ("throughput, NSD / autoregressive decoding, highest", 5.16, "abstract")
IN_NUCLEUS = ("rejected tokens inside the target nucleus at 0.95", 0.526, "section 4.4")
IN_TOP_TEN = ("rejected tokens among the target's ten most likely", 0.815, "section 4.4")
