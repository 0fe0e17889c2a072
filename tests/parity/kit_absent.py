"""What of SGLang's kits and fixtures is not run here, and why; `test_kit_report.py` sees to it that nothing is left out."""

GRADED = "grades answers against a data set from the network, with scores that only a large trained model reaches"

# Kits (a class, or a module without one that has tests) that no server here can be asked with.
KITS = {
    "attention_unittest": "CUDA kernels of attention backends; no server and no speculative algorithm in them",
    "dsa_metadata_kit": "CUDA kernels of sparse attention; no server and no speculative algorithm in them",
    "unified_radix_cache": "parts of unit tests of the cache; no server and no speculative algorithm in them",
    "perf_bench_kit": "compares figures with bounds of one of SGLang's CI machines; has no tests of its own",
    "radix_cache_server_kit": "has no tests of its own; SpecFeatureKit.test_radix_attention runs it",
    "eval_accuracy_kit.MMLUSanityMixin": GRADED,
    "eval_accuracy_kit.GSM8KMixin": GRADED,
    "eval_accuracy_kit.MMLUMixin": GRADED,
    "eval_accuracy_kit.MMMUProMixin": GRADED,
    "eval_accuracy_kit.HumanEvalMixin": GRADED,
    "eval_accuracy_kit.MGSMEnMixin": GRADED,
    "spec_server_kits.SpecAccuracyKit": GRADED,
    "lm_eval_kit.LMEvalMixin": GRADED,
    "unified_radix_cache_kit.AccuracyTwoPassMixin": GRADED,
    "mmmu_vlm_kit.MMMUMixin": "needs a vision-language model",
    "vlm_perf_kit": "needs a vision-language model; has no tests of its own",
    "pd_parity_kit.PDLogprobParityMixin": "needs PD disaggregation with a transfer engine, and GPUs",
    "prefix_cache_branching_kit.PrefixCacheBranchingMixin": "asserts the cache of hybrid (Mamba) models, which fills a page later "
    "than a radix cache of attention",
    "fwd_occupancy_kit.FwdOccupancyMixin": "the gauge that it bounds is measured with CUDA events",
    "spec_decoding_kit.SpecDecodingMixin": "bounds tokens/s and accepted length of a trained model on a GPU",
    "spec_server_kits.SpecPerfKit": "bounds tokens/s on a GPU",
}

GSM8K = "its test grades GSM8K from the network"
# Classes of `sglang.test.server_fixtures`. One without tests of its own starts the server that a kit's class asks.
FIXTURES = {
    "default_fixture.DefaultServerBase": "no tests; its place is taken by the servers below",
    "spec_eagle_fixture.SpecEagleServerBase": "no tests; its helpers are lent to every kit here, its shape (5 steps, top-1, 6 tokens) "
    "is the one used, its place is taken by the servers below",
    "spec_eagle_fixture.Eagle3Base": "no tests; Llama-3.1-8B and its EAGLE-3 head from the network",
    "spec_eagle_fixture.EagleLlama2Base": "no tests; Llama-2-7B and its EAGLE head from the network; for it the demo's pair",
    "eagle_fixture.EagleServerBase": "no tests; Llama-2-7B and its EAGLE head from the network; for it the demo's pair",
    "streaming_session_fixture.StreamingSessionServerBase": "no tests; for it the servers `sessions` and `leak`",
    "standalone_fixture.StandaloneServerBase": GSM8K + "; for it the server `self`",
    "pcg_spec_fixture.PCGSpecBase": GSM8K + ", with piecewise CUDA graphs",
    "hybrid_attn_backend_fixture.TestHybridAttnBackendBase": GSM8K + ", with CUDA attention backends (SM 90)",
    "ngram_fixture.NgramServerBase": "no tests; NGRAM drafts without a model, which NSD does not do",
    "dsa_mtp_fixture.DsaMtpEvalConfigDefaults": "settings of the next",
    "dsa_mtp_fixture.DsaMtpServerBase": "no tests; DeepSeek-V3.2 on eight GPUs",
    "disaggregation_fixture.PDDisaggregationServerBase": "no tests; PD disaggregation with a transfer engine, and GPUs",
    "mmmu_fixture.MMMUServerBase": "no tests; needs a vision-language model",
    "rust_mm_transport_fixture.RustMmTransportServerBase": "needs a vision-language model",
}
