"""Settings that must stand before torch or SGLang are imported by any test."""

import os

# Some small functions of SGLang are compiled on first use, which on a CPU costs a C++ compiler run each.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
