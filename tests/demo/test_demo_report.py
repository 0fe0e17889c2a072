"""The figures and the report, from canned answers."""

import json

import pytest

from nsd_sglang.demo import report
from nsd_sglang.demo.cache import DemoError
from nsd_sglang.demo.measure import Arm, answer_from


def reply(tokens, verify_calls=None, text="x"):
    meta = {"completion_tokens": tokens} | ({} if verify_calls is None else {"spec_verify_ct": verify_calls})
    return {"text": text, "meta_info": meta}


def arm(name, wall_s, *replies):
    return Arm(name, ["python", "-m", "sglang.launch_server"], 1.0, wall_s, [answer_from(r, 0.5) for r in replies])


@pytest.fixture
def arms():
    return (
        arm("plain", 10.0, reply(64), reply(38)),
        arm("stock EAGLE", 10.0, reply(64, 40), reply(38, 40)),
        arm("NSD 0.95", 5.0, reply(64, 30), reply(38, 20)),
    )


def test_figures_by_hand(arms):
    plain, stock, nsd = arms
    assert plain.tokens_per_s == 10.2 and nsd.tokens_per_s == 20.4
    # 102 output tokens, 2 of them from the prompts' own passes.
    assert plain.decoded_tokens == 100 and plain.verify_calls == 100
    assert (plain.accepted_length, stock.accepted_length, nsd.accepted_length) == (1.0, 1.25, 2.0)
    assert (plain.verify_calls_per_token, stock.verify_calls_per_token, nsd.verify_calls_per_token) == (1.0, 0.8, 0.5)


def test_ratios_by_hand(arms):
    assert report.ratios(*arms) == {
        "tokens_per_s": {"stock/plain": 1.0, "nsd/plain": 2.0, "nsd/stock": 2.0},
        "accepted_length": {"stock/plain": 1.25, "nsd/plain": 2.0, "nsd/stock": 1.6},
        "verify_calls_per_token": {"stock/plain": 0.8, "nsd/plain": 0.5, "nsd/stock": 0.625},
    }


def test_table_is_aligned_and_holds_every_figure(arms):
    head, rule, *rows = report.table(*arms).splitlines()
    assert len(rows) == 3 and {len(line) for line in (head, rule, *rows)} == {len(head)}
    assert len(head) <= 80
    assert rows[0].split()[-6:] == ["10.20", "10.20", "20.40", "1.00x", "2.00x", "2.00x"]
    assert rows[1].split()[-6:] == ["1.00", "1.25", "2.00", "1.25x", "2.00x", "1.60x"]
    assert rows[2].split()[-6:] == ["1.00", "0.80", "0.50", "0.80x", "0.50x", "0.62x"]
    for title in ("plain", "stock EAGLE", "NSD 0.95", "NSD/stock"):
        end = head.index(title) + len(title)
        assert all(row[end - 1] != " " and row[end : end + 2].strip() == "" for row in rows)


def test_answers_without_counts_are_refused():
    with pytest.raises(DemoError, match="token counts"):
        answer_from({"text": "x", "meta_info": {}}, 0.1)
    with pytest.raises(DemoError, match="token counts"):
        answer_from({"error": "busy"}, 0.1)


@pytest.mark.parametrize("width", [40, 80, 121])
def test_side_by_side_fits_and_loses_no_word(width):
    left = "def f(x):\n    return x + 1\n\n" + "word " * 30
    text = report.side_by_side(left, "```python\n\tpass\n```", "plain", "NSD", width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= max(width, 43)
    assert len({line.index("|") for line in lines}) == 1
    column = lines[0].index("|")
    assert text.count("word") == 30
    assert any(line[:column].startswith("    return x + 1") for line in lines)
    assert lines[2][column + 2 :] == "```python" and lines[3][column + 2 :] == "    pass"


def test_document_is_strict_json_and_complete(arms, tmp_path):
    path = tmp_path / "figures.json"
    one_token = arm("plain", 1.0, reply(1))
    for plain in (arms[0], one_token):
        report.write_json(path, report.document({"threshold": 0.95}, plain, *arms[1:]))
        read = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        assert set(read) == {"created", "settings", "machine", "versions", "ratios", "arms"}
        assert read["arms"]["nsd"]["verify_calls"] == 50
        assert [answer["output_tokens"] for answer in read["arms"]["nsd"]["answers"]] == [64, 38]
        assert read["machine"]["usable_cores"] >= 1 and read["versions"]["python"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["figures.json"]
    assert read["arms"]["plain"]["accepted_length"] is None
