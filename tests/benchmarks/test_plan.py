"""The schedule is interleaved and fair, and a resumed run starts no server it does not need."""

from nsd_sglang.benchmarks import arms, load, plan


def test_every_repeat_has_every_arm_and_no_arm_is_always_first(settings):
    compared = arms.comparison(settings)
    units = plan.schedule("comparison", compared, [1, 8], 3)
    assert len({unit.key for unit in units}) == len(units) == len(compared) * 2 * 3
    for repeat in range(3):
        assert {unit.arm for unit in units if unit.repeat == repeat} == {arm.name for arm in compared}
    firsts = [next(unit.arm for unit in units if unit.repeat == repeat) for repeat in range(3)]
    assert len(set(firsts)) == 3
    assert [unit.repeat for unit in units] == sorted(unit.repeat for unit in units)


def test_one_server_measures_all_concurrencies_in_order(settings):
    groups = plan.servers(plan.schedule("comparison", arms.comparison(settings), [1, 8, 32], 2), set())
    assert len(groups) == 2 * len(arms.comparison(settings))
    for group in groups:
        assert [unit.concurrency for unit in group] == [1, 8, 32]
        assert len({(unit.arm, unit.repeat) for unit in group}) == 1


def test_finished_units_are_left_out_with_their_servers(settings):
    units = plan.schedule("comparison", arms.comparison(settings), [1, 8], 2)
    done = {units[0].key, units[1].key, units[2].key}
    groups = plan.servers(units, done)
    assert [unit.key for unit in groups[0]] == [units[3].key]
    assert sum(len(group) for group in groups) == len(units) - 3
    assert plan.servers(units, {unit.key for unit in units}) == []


def test_every_arm_is_loaded_by_the_same_command(settings, tmp_path):
    words = load.command(settings, "http://127.0.0.1:1234", 8, 2, tmp_path / "x.jsonl")
    pairs = dict(zip(words, words[1:]))
    assert (pairs["--host"], pairs["--port"], pairs["--num-prompts"], pairs["--max-concurrency"]) == ("127.0.0.1", "1234", "16", "8")
    assert (pairs["--seed"], pairs["--temperature"], pairs["--sharegpt-output-len"]) == ("7", "1", "32")
    assert pairs["--warmup-requests"] == "0" and "--flush-cache" in words and "--output-details" in words
    assert "--extra-request-body" not in words and "--disable-ignore-eos" not in words


def test_request_options_and_random_prompts(settings, tmp_path):
    import dataclasses
    import json

    changed = dataclasses.replace(
        settings,
        dataset="random",
        dataset_path=None,
        temperature=0.7,
        stop_at_eos=True,
        request_body={"priority": 1, "sampling_params": {"top_p": 0.9}},
    )
    words = load.command(changed, "http://127.0.0.1:1", 1, 0, tmp_path / "x")
    pairs = dict(zip(words, words[1:]))
    assert (pairs["--random-input-len"], pairs["--random-output-len"], pairs["--random-range-ratio"]) == ("64", "32", "1.0")
    # bench_serving replaces its sampling parameters by those of the body, so they are all in it.
    sampling = {"temperature": 0.7, "max_new_tokens": 32, "ignore_eos": False, "top_p": 0.9}
    assert json.loads(pairs["--extra-request-body"]) == {"priority": 1, "sampling_params": sampling}
    assert "--disable-ignore-eos" in words and "--dataset-path" not in words
