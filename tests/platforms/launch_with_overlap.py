"""`sglang.launch_server` with overlap scheduling left on for stock speculation, which SGLang turns off on a CPU.

Algorithms that plug into SGLang keep it on; this is how the overlap paths are tested with the stock ones.
"""

import runpy

if __name__ == "__main__":
    from sglang.srt.arg_groups import speculative_hook

    speculative_hook._disable_overlap_schedule_for_cpu = lambda server_args: None
    runpy.run_module("sglang.launch_server", run_name="__main__")
