"""The default model: its tokenizer, and its answers through the hook."""

import numpy as np
import pytest
import torch

from santa_hw import models
from santa_hw.design import Design
from santa_hw.models import defaults


@pytest.fixture(scope="module")
def smollm():
    return models.load()


@pytest.fixture(scope="module")
def play(smollm):
    return {
        name: np.asarray(smollm.tokenizer(models.load_text(name))["input_ids"])
        for name in (models.EVALUATION_TEXT, models.CALIBRATION_TEXT)
    }


@pytest.mark.model
def test_smollm_tokenizer(smollm):
    defaults.check_chat_tokenizer(smollm.tokenizer)
    for name in models.TEXTS:
        text = models.load_text(name)
        assert len(text) > 100_000
        assert "gutenberg" not in text.lower()
        assert smollm.tokenizer.decode(smollm.tokenizer(text)["input_ids"]) == text
    assert (smollm.layers, smollm.heads, smollm.kv_heads, smollm.head_dim) == (30, 9, 3, 64)
    assert smollm.identity.startswith("llama-135M-")
    assert smollm.model.dtype == torch.float32


def ask(smollm, question: str) -> str:
    chat = smollm.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    tokens = smollm.model.generate(**chat, max_new_tokens=12, do_sample=False)
    return smollm.tokenizer.decode(tokens[0, chat["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.model
@pytest.mark.parametrize("phases", ["both", "decode"])
def test_smollm_answers_through_the_hook(smollm, phases):
    question = "What is the capital of France?"
    with models.attention(smollm, models.dense, phases=phases):
        answer = ask(smollm, question)
        assert "Paris" in answer
        assert ask(smollm, question) == answer


@pytest.mark.model
@torch.inference_mode()
def test_smollm_hook_gives_eager_logits(smollm, play):
    tokens = torch.from_numpy(play[models.EVALUATION_TEXT][:256])[None]
    smollm.model.set_attn_implementation("eager")
    try:
        expected = smollm.model(tokens).logits
    finally:
        smollm.model.set_attn_implementation("sdpa")
    with models.attention(smollm, models.dense):
        actual = smollm.model(tokens).logits
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-3)
    assert float(torch.nn.functional.cross_entropy(actual[0, :-1], tokens[0, 1:]).exp()) < 60


@pytest.mark.model
def test_smollm_calibration(smollm, play, tmp_path):
    windows = play[models.CALIBRATION_TEXT][: 2 * 256].reshape(2, 256)
    calibration = models.calibrate(smollm, windows)
    calibration.save(tmp_path / "smollm.npz")
    again = models.Calibration.load(tmp_path / "smollm.npz", smollm.identity)
    assert np.array_equal(again.k_max, calibration.k_max)
    assert calibration.k_max.shape == (30, 3, 64)
    assert (calibration.k_max > 0).all()
    again.require_disjoint(play[models.EVALUATION_TEXT][None])
    hook = models.fixed_point(smollm, Design(samples=64), again, seed=0)
    with models.attention(smollm, hook, phases="decode"):
        assert "Paris" in ask(smollm, "What is the capital of France?")
    assert 1 < hook.tally.mean_unique_rows < 64
