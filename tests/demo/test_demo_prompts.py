"""HumanEval as chat prompts."""

import gzip
import json

from nsd_sglang.demo import command, prompts


class Tokenizer:
    """Records what the chat template is asked for; one id per turn."""

    def apply_chat_template(self, turns, **options):
        self.turns, self.options = turns, options
        return [len(turns)]


def test_problems_keep_the_data_sets_order(tmp_path):
    path = tmp_path / "HumanEval.jsonl.gz"
    with gzip.open(path, "wt") as out:
        out.writelines(json.dumps({"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n"}) + "\n" for i in (3, 1, 2))
    assert prompts.load_problems(path) == ["def f3():\n", "def f1():\n", "def f2():\n"]


def test_a_prompt_is_one_user_turn_and_asks_for_the_assistants():
    tokenizer = Tokenizer()
    assert prompts.chat_prompts(["\ndef f():\n    pass\n"], tokenizer) == [[1]]
    assert [turn["role"] for turn in tokenizer.turns] == ["user"]
    assert "```python\ndef f():\n    pass\n```" in tokenizer.turns[0]["content"]
    assert tokenizer.options == {"add_generation_prompt": True, "return_dict": False}


def test_a_problem_is_named_after_the_function_to_complete():
    code = "def helper(x):\n    return x\n\ndef wanted(a: int) -> int:\n    '''def inner'''\n"
    assert command._function_name(code) == "wanted"
