"""Graders: what a reply states, against replies written with a known answer, and records that are none."""

import json
import re
from fractions import Fraction

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from santa_hw import cli, models, sweep
from santa_hw.design import Design
from santa_hw.evaluate import decoding, gsm8k, mmlu, retrieval, ruler
from santa_hw.evaluate.replies import clauses

GSM8K = [
    {"question": "Ann has 3 hens that lay 24 eggs each. How many eggs?", "answer": "3 * 24 = <<3*24=72>>72\n#### 72"},
    {"question": "A coat costs $1,000 more than $234. What does it cost?", "answer": "#### 1,234"},
    {"question": "It was 3 degrees and fell by 8. What is it now?", "answer": "-5"},
]
MMLU = [
    {"question": "Which is a prime?", "choices": ["4", "7", "9", "15"], "answer": 1, "subject": "algebra"},
    {"question": "Which is even?", "choices": ["1", "3", "5", "8"], "answer": "D"},
]
RULER = [
    {"index": 0, "input": "The magic numbers are 11 and 22. Which?", "outputs": ["11", "22"], "length": 60},
    {"index": 1, "input": "The magic number is 33. Which?", "outputs": ["33"], "answer_prefix": " They are"},
]


def jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, expected",
    [
        ("72", [72]), ("72.", [72]), ("72.00", [72]), ("007", [7]), (".5", ["1/2"]), ("3.25", ["13/4"]),
        ("1,234", [1234]), ("1,234,567.5", ["2469135/2"]), ("1{,}234", [1234]), (r"1\,234", [1234]),
        ("1\u202f234", [1234]), ("1,23", [1, 23]), ("1,2345", [1, 2345]), ("3, 4", [3, 4]),
        ("-5", [-5]), ("−5", [-5]), ("–5", [-5]), ("+5", [5]), ("-$5", [-5]), ("$-5", [-5]), ("(-5)", [-5]),
        ("10-3", [10, 3]), ("5–10", [5, 10]), ("x-3", [3]), ("50%-60%", [50, 60]),
        ("$72", [72]), ("€1,000", [1000]), (r"\$72", [72]), ("72km", [72]), ("72 km/h", [72]), ("50%", [50]),
        (r"50\%", [50]), ("1/2", ["1/2"]), ("-1/2", ["-1/2"]), ("1/2.", ["1/2"]), ("72 / 3", [24]), ("1/0", []),
        ("3 1/2", ["7/2"]), ("-3 1/2", ["-7/2"]), ("½", ["1/2"]), ("3½", ["7/2"]),
        (r"\frac{3}{4}", ["3/4"]), (r"-\frac34", ["-3/4"]),
        (r"2\dfrac{ 1 }{ 2 }", ["5/2"]), (r"\frac{\text{10}}{4}", ["5/2"]), ("12/4/2020", [12, 4, 2020]),
        ("1e3", [1000]), ("2.5e-1", ["1/4"]), ("2e", [2]), ("the 3rd of 21st", []), ("H2O and x4", []), ("", []),
        ("１２", []), ("seventy-two", []), ("1.2.3", ["6/5", 3]), ("a.5", [5]),
    ],
)  # fmt: skip
def test_numbers_of_a_text(text, expected):
    assert gsm8k.numbers(text) == [Fraction(value) for value in expected]


AMOUNTS = st.integers(-(10**9), 10**9).map(Fraction) | st.fractions(-1000, 1000, max_denominator=20)


def written(value: Fraction, style: int) -> str:
    """A way to write a number; which ones there are depends on it."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size.denominator == 1:
        whole = size.numerator
        return [
            f"{sign}{whole}", f"{sign}{whole:,}", f"{sign}${whole:,}.00", f"−{whole}" if sign else f"+{whole}",
            f"{sign}{whole:,} apples".replace(",", "{,}"), rf"{sign}\${whole}",
        ][style % 6]  # fmt: skip
    top, bottom = size.numerator, size.denominator
    mixed = f"{sign}{top // bottom} {top % bottom}/{bottom}" if top > bottom else f"{sign}{top}/{bottom}"
    return [f"{sign}{top}/{bottom}", mixed, rf"{sign}\frac{{{top}}}{{{bottom}}}"][style % 3]


FRAMES = [
    "{}", "It is {}.", "The final answer is {}.", "The answer is: **{}**", "5 + 4 = 9, so\n#### {}", r"\boxed{{{}}}",
    r"So $x = \boxed{{\text{{{} dollars}}}}$ in 30 days.", "1: 7 hens.\nThe answer is 9 + 9 = {}\nIt took 2 steps.",
    "The final answer is 8. No, wait: the final answer is {} eggs, laid by 17 hens.", "Answer: {}!",
    r"\boxed{{4}} was wrong, \boxed{{{}}} is right, not \boxed{{3",
]  # fmt: skip


@given(AMOUNTS, st.integers(0, 5), st.sampled_from(FRAMES))
def test_a_number_is_found_however_it_is_written(value, style, frame):
    text = written(value, style)
    reply = frame.format(text)
    assert gsm8k.stated(reply) == value, reply
    assert gsm8k.score(reply, [written(value, 0)]) == 1.0
    assert gsm8k.score(reply, [str(value.numerator // value.denominator + 1)]) == 0.0


@pytest.mark.parametrize(
    "reply, expected",
    [
        ("", None), ("I cannot answer this.", None), ("The answer is unknown.", None), (r"\boxed{}", None),
        ("The answer is 5 or 7.", None), (r"\boxed{5, 7}", None), ("The answer is $5 and $7", None),
        ("The final answer is 72 apples, and 3 pears are left.", 72),
        ("The answer is the total: 72", 72), ("Total: 60, minus 12: 48", 48), ("#### ", None),
        (r"\boxed{5} is the answer", 5), (r"\boxed{\frac{1}{\text{2}}}", "1/2"), (r"\boxed{72", 72),
        ("The answer is\n\n72", 72), ("The answers are 3", 3), ("answer=-4", -4), ("#### 72 eggs\nDone in 3.", 72),
        ("The answer is 3.5. Done.", "7/2"), ("The answer is 1/2.", "1/2"),
        ("The answer is 5. No, the answer is 7.", 7), ("The answer to the problem is 4 eggs of 2 hens.", 4),
        ("The answer is 72. Check: 70 + 3 = 73", 72),
        ("#### 72\n70 + 3 = 73", 72),
    ],
)  # fmt: skip
def test_awkward_replies(reply, expected):
    assert gsm8k.stated(reply) == (None if expected is None else Fraction(expected))


@given(st.text("0123456789.,/-−$%½ \\{}[]boxedfracanswerisABCDabcd#\n", max_size=80))
def test_any_reply_is_graded(reply):
    assert gsm8k.score(reply, ["72"]) in (0.0, 1.0)
    assert mmlu.score(reply, ["B"]) in (0.0, 1.0)
    assert ruler.qa_score(reply, ["Paris"]) in (0.0, 1.0)
    if not re.search(r"[0-9¼-¾⅐-⅞]", reply):
        assert gsm8k.stated(reply) is None


@given(st.recursive(st.sampled_from(["5", "x", " "]), lambda inner: st.lists(inner, min_size=1, max_size=3).map(
    lambda parts: "{" + "".join(parts) + "}"), max_leaves=8))  # fmt: skip
def test_a_box_ends_at_its_own_brace(content):
    assert list(clauses(r"so \boxed{" + content + "} } }")) == [content]
    assert list(clauses(r"so \boxed{" + content)) == []


def test_true_answers():
    assert [gsm8k.true_answer(record["answer"]) for record in GSM8K] == ["72", "1,234", "-5"]
    for answer in ("none", "#### ", "3 or 4", None):
        with pytest.raises(ValueError, match=r"record 7: answer ends in .*allowed: one number"):
            gsm8k.true_answer(answer, 7)


# Letters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        "{}", "{}.", "({})", "**{}**", "{}. Seven", "{}) Seven, because A is even.", "The best answer is {}",
        "The best answer is ({}).", "The best answer is [{}]", "Answer: {}", r"\boxed{{{}}}", r"\boxed{{\text{{{}}}}}",
        "The correct option is: **{}**", "The answer is A. No: the answer is {} because A is even.",
        "The answer is not A. The best answer is {}, not C.", "A good question, it must be {}", "“{}”",
    ],
)  # fmt: skip
@pytest.mark.parametrize("letter", "ABCD")
def test_letters_are_found(frame, letter):
    assert mmlu.stated(frame.format(letter)) == letter
    assert mmlu.score(frame.format(letter), [letter]) == 1.0
    assert mmlu.score(frame.format(letter), ["ABCD"["BCDA".index(letter)]]) == 0.0


@pytest.mark.parametrize(
    "reply, expected",
    [
        ("", None), ("I think so", None), ("Dear me", None), ("The best answer is A or B", None), ("B, C", None),
        ("The best answer is A/B", None), ("E", None), ("The answer is a matter of taste", None), ("b", "B"),
        ("The answer is (c).", "C"), ("the answer is d.", "D"), ("A is odd, B is even", None), ("(d)", "D"),
        ("A dog", None), ("The answer is E", None), ("Both A and B", None),
    ],
)  # fmt: skip
def test_awkward_letters(reply, expected):
    assert mmlu.stated(reply) == expected


@pytest.mark.parametrize("answer", [4, -1, True, "E", "AB", "", None, 1.0])
def test_letters_that_are_none(answer):
    with pytest.raises(ValueError, match=r"record 3: answer is .*allowed: 0 to 3, or A to D"):
        mmlu.true_letter(answer, 3)


# Tasks --------------------------------------------------------------------------------------------


def test_prompts_hold_the_question_and_nothing_of_the_answer(loaded):
    def prompts(work):
        return [loaded.tokenizer.decode(trial.prompt) for trial in work.trials]

    work = gsm8k.gsm8k(loaded, GSM8K, trials=2)
    assert [trial.answers for trial in work.trials] == [("72",), ("1,234",)]
    assert all(record["question"] in prompt for record, prompt in zip(GSM8K, prompts(work), strict=False))
    assert not any("72" in prompt for prompt in prompts(work))
    assert work.keys == max(len(trial.prompt) for trial in work.trials) + gsm8k.NEW_TOKENS

    work = mmlu.mmlu(loaded, MMLU, trials=2)
    assert [trial.answers for trial in work.trials] == [("B",), ("D",)]
    assert "Which is a prime?\nA. 4\nB. 7\nC. 9\nD. 15\n" in prompts(work)[0]

    work = ruler.ruler(loaded, "niah-multivalue", RULER, trials=2)
    assert prompts(work) == [f"<s>{RULER[0]['input']}<end><s>", f"<s>{RULER[1]['input']}<end><s> They are"]
    assert [trial.answers for trial in work.trials] == [("11", "22"), ("33",)]
    templated = ruler.ruler(loaded, "qa", [{"input": "<s>Who?<end><s>", "outputs": ["Ann"]}], trials=1)
    assert prompts(templated) == ["<s>Who?<end><s>"]


@pytest.mark.parametrize(
    "make, records, replies, expected",
    [
        (gsm8k.gsm8k, GSM8K, ["#### 72", "It costs 1234.00", "It is 5"], [1, 1, 0]),
        (mmlu.mmlu, MMLU, ["The best answer is B", "A"], [1, 0]),
        (lambda *a, **k: ruler.ruler(a[0], "niah-multivalue", *a[1:], **k), RULER, ["22", "33"], [0.5, 1]),
        (lambda *a, **k: ruler.ruler(a[0], "qa", *a[1:], **k), RULER, ["it is 22", "none"], [1, 0]),
        (lambda *a, **k: ruler.ruler(a[0], "fwe", *a[1:], **k), RULER, ["11 22", "22"], [1, 0]),
    ],
    ids=["gsm8k", "mmlu", "niah-multivalue", "qa", "fwe"],
)
def test_replies_are_graded_one_by_one(loaded, monkeypatch, make, records, replies, expected):
    given_out = iter(replies)
    monkeypatch.setattr(decoding, "greedy", lambda *_: loaded.tokenizer(next(given_out))["input_ids"])
    result = make(loaded, records, trials=len(records)).evaluate(None)
    assert [trial["score"] for trial in result["per_trial"]] == expected


@pytest.mark.parametrize(
    "make, records, options, message",
    [
        (gsm8k.gsm8k, GSM8K, {"trials": 4}, "trials is 4; allowed: at most the data's 3 records"),
        (gsm8k.gsm8k, GSM8K, {"trials": 0}, "trials is 0"),
        (gsm8k.gsm8k, MMLU, {"trials": 1}, "record 0: answer ends in '1'|record 0: 'answer'"),
        (gsm8k.gsm8k, RULER, {"trials": 1}, "record 0: 'question' is missing; allowed: records with question, answer"),
        (gsm8k.gsm8k, [GSM8K[0] | {"question": "x" * 4000}], {"trials": 1}, "prompt and reply of record 0 is .* 4096"),
        (mmlu.mmlu, GSM8K, {"trials": 1}, "record 0: 'choices' is missing"),
        (mmlu.mmlu, [MMLU[0] | {"choices": ["1", "2"]}], {"trials": 1}, "record 0: choices is .*a list of four"),
    ],
)
def test_records_that_are_refused(loaded, make, records, options, message):
    if records is MMLU:
        records = [{"question": "Which?", "answer": "none"}]
        message = "record 0: answer ends in 'none'"
    with pytest.raises(ValueError, match=message):
        make(loaded, records, **options)


@pytest.mark.parametrize("outputs", [[], "11", [11], None, ["eleven"]])
def test_outputs_that_are_refused(loaded, outputs):
    with pytest.raises(ValueError, match=r"record 0: outputs is .*allowed"):
        ruler.ruler(loaded, "niah-multivalue", [{"input": "Which?", "outputs": outputs}], trials=1)


def test_several_numbers_of_one_city(loaded):
    work = retrieval.needle(loaded, tiny.prose(1, 600), context=900, needles=4, trials=3, one_key=True)
    assert work.name == "niah-multivalue"
    for trial in work.trials:
        message = loaded.tokenizer.decode(trial.prompt)
        (city,) = re.findall(r"What are all the special magic numbers for (\w+) ", message)
        hidden = re.findall(rf"One of the special magic numbers for {city} is: ([0-9]{{7}})\.", message)
        assert sorted(hidden) == sorted(trial.answers)
        assert len(set(hidden)) == 4
    (single,) = retrieval.needle(loaded, tiny.prose(1, 600), context=900, trials=1, one_key=True).trials
    assert "What is the special magic number for" in loaded.tokenizer.decode(single.prompt)


# Files --------------------------------------------------------------------------------------------


def test_records_come_from_lines(tmp_path):
    path = tmp_path / "data.jsonl"
    # A line separator inside a text is no end of a line.
    path.write_text('{"question": "a\u2028b"}\n\n{"question": "c"}', encoding="utf-8")
    assert models.load_records(path) == [{"question": "a\u2028b"}, {"question": "c"}]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b'{"a": 1}\n{"a": ', "line 2 is not JSON"),
        (b'{"a": 1}\n\n[1]\n', r"line 3 is \[1\]: a JSON object"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_files_that_hold_no_records(tmp_path, content, message):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"data .*data\.jsonl.*{message}"):
        models.load_records(path)
    with pytest.raises(ValueError, match="no such file"):
        models.load_records(tmp_path / "nowhere.jsonl")


def test_records_come_from_the_hub(monkeypatch):
    asked = []

    class Datasets:
        @staticmethod
        def load_dataset(dataset, config, split):
            asked.append((dataset, config, split))
            return iter(GSM8K)

    monkeypatch.setitem(__import__("sys").modules, "datasets", Datasets)
    assert models.load_records("hub:openai/gsm8k/main:train") == GSM8K
    assert models.load_records("hub:cais/mmlu/all") == GSM8K
    assert asked == [("openai/gsm8k", "main", "train"), ("cais/mmlu", "all", "test")]
    with pytest.raises(ValueError, match=r"data 'hub:a/b:test:text': hub:dataset\[/config\]\[:split\] is allowed"):
        models.load_records("hub:a/b:test:text")
    with pytest.raises(ValueError, match="data 'hub:'"):
        models.load_records("hub:")


def test_the_command_line_knows_the_tasks_of_the_sweep():
    assert cli.CHOICES["task"] == sweep.TASKS
    assert cli._DATA == sweep.DATA_TASKS


@pytest.mark.parametrize("name, records", [("gsm8k", GSM8K), ("mmlu", MMLU), ("qa", RULER), ("niah-multivalue", RULER)])
def test_rows_resume_on_the_same_records_and_on_no_others(tmp_path, monkeypatch, loaded, name, records):
    monkeypatch.setattr(decoding, "greedy", lambda *_: loaded.tokenizer("The answer is B: 72")["input_ids"])
    points, rows = sweep.grid(Design(), [], methods=["float-dense"]), sweep.Rows(tmp_path / "rows.json")

    def run(data):
        task, setting = sweep.open_task(loaded, name, data=str(data), trials=2)
        assert (setting.task, setting.trials, setting.context, setting.needles) == (name, 2, None, None)
        return sweep.run(loaded, task, setting, points, rows)

    (row,) = run(jsonl(tmp_path / "data.jsonl", records))
    assert len(row["per_trial"]) == 2
    # The same records under another name are the same data; others are not.
    run(jsonl(tmp_path / "copy.jsonl", records))
    assert len(rows.rows) == 1
    run(jsonl(tmp_path / "data.jsonl", [*records[:1], *records[1:], {"extra": 1}]))
    assert len(rows.rows) == 2
