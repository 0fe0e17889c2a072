"""Files that a benchmark is given."""

import json


def write_prompts(path, prompts):
    lines = [{"conversations": [{"role": "user", "content": p}, {"role": "assistant", "content": "x"}]} for p in prompts]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
