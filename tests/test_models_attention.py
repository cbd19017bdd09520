"""Attention hooks against the library's own eager attention; what a call says, and what is refused."""

import pytest
import torch
import transformers
from architectures import (
    ARCHITECTURES,
    GROUPED,
    OLD_CACHE_NAME,
    RUNS,
    SIZES,
    VOCABULARY,
    Recorder,
    chunked_logits,
    copy_call,
    decode_logits,
    deviation,
    generated_logits,
    prefill_logits,
    prompt,
    static_cache_logits,
    tiny,
)
from transformers import AutoModelForCausalLM

from santa_hw import models

pytestmark = OLD_CACHE_NAME


# ----------------------------------------------------------------------------------------------------
# The checker: a hook that computes softmax attention from its call alone must give the library's logits.


def softmax_hook(call: models.Call) -> torch.Tensor:
    """Attention one query at a time, in float64, from the call's own words."""
    batch, heads, rows, _ = call.q.shape
    q, k, v = call.q.double(), call.k.double(), call.v.double()
    group = heads // k.shape[1]
    output = torch.zeros_like(q)
    for b in range(batch):
        for t in range(rows):
            seen = torch.arange(int(call.lengths[b, t]))
            if call.mask is not None:
                seen = seen[call.mask[b, t, : len(seen)]]
            if len(seen):
                keys, values = (x[b, :, seen].repeat_interleave(group, 0) for x in (k, v))
                weights = torch.softmax(torch.einsum("hnd,hd->hn", keys, q[b, :, t]) * call.scale, -1)
                output[b, :, t] = torch.einsum("hn,hnd->hd", weights, values)
    return output


def without_mask(call):
    return softmax_hook(copy_call(call, mask=None))


def without_lengths(call):
    return softmax_hook(copy_call(call, lengths=torch.full_like(call.lengths, call.k.shape[2])))


def default_scale(call):
    return softmax_hook(copy_call(call, scale=call.q.shape[-1] ** -0.5))


def wrong_group(call):
    return softmax_hook(copy_call(call, k=call.k.flip(1), v=call.v.flip(1)))


@pytest.mark.parametrize("run", RUNS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_softmax_hook_gives_the_librarys_logits(architecture, run, seed):
    assert deviation(tiny(architecture, seed % 1000), softmax_hook, run, seed) < 1e-5


@pytest.mark.parametrize("run", RUNS, ids=lambda f: f.__name__)
def test_dense_hook_gives_the_librarys_logits(run, seed):
    assert deviation(tiny("qwen2-mixed", seed % 1000), models.dense, run, seed) < 1e-5


@pytest.mark.parametrize(
    ("architecture", "run", "fault"),
    [
        ("mistral-window", prefill_logits, without_mask),
        ("mistral-window", chunked_logits, without_mask),
        ("llama", generated_logits, without_mask),
        ("llama", prefill_logits, without_lengths),
        ("llama", chunked_logits, without_lengths),
        ("gemma3", prefill_logits, default_scale),
        ("gpt2", decode_logits, default_scale),
        ("llama", prefill_logits, wrong_group),
    ],
)
def test_the_checker_sees_a_planted_fault(architecture, run, fault, seed):
    assert deviation(tiny(architecture, seed % 1000), fault, run, seed) > 1e-3


# ----------------------------------------------------------------------------------------------------
# What a call says.


@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "gemma3", "gpt2"])
def test_positions_in_decode_equal_those_in_prefill(architecture, seed):
    loaded = tiny(architecture)
    with models.attention(loaded, whole := Recorder()):
        prefill_logits(loaded, seed)
    with models.attention(loaded, stepped := Recorder()):
        decode_logits(loaded, seed)
    for layer in range(loaded.layers):
        assert torch.equal(whole.layer(layer)[0].position, torch.arange(12).expand(2, -1))
        steps = torch.cat([call.position for call in stepped.layer(layer)], 1)
        assert torch.equal(steps, whole.layer(layer)[0].position)
        assert [call.q.shape[2] for call in stepped.layer(layer)] == [5, *[1] * 7]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("architecture", ["llama", "mistral-window"])
def test_positions_do_not_depend_on_padding(architecture, cache, seed):
    loaded = tiny(architecture)
    options = {} if cache == "dynamic" else {"cache_implementation": "static"}
    with models.attention(loaded, recorder := Recorder(), sequence=7):
        generated_logits(loaded, seed, **options)
    first, *steps = recorder.layer(1)
    for row, length in enumerate((9, 4, 7)):
        assert first.position[row].tolist() == [0] * (9 - length) + list(range(length))
        assert first.lengths[row, : 9 - length].tolist() == [0] * (9 - length)
        assert [int(call.position[row, 0]) for call in steps] == list(range(length, length + 5))
    assert all(call.sequence.tolist() == [7, 8, 9] for call in recorder.calls)
    assert all(call.q.shape[2] == 1 for call in steps)


def test_lengths_stand_alone_without_padding(seed):
    loaded = tiny()
    with models.attention(loaded, recorder := Recorder()):
        decode_logits(loaded, seed)
    for call in recorder.calls:
        assert call.mask is None
        assert torch.equal(call.lengths, call.position + 1)


def test_unseen_cache_slots_are_cut_off(seed):
    loaded = tiny()
    with models.attention(loaded, recorder := Recorder()):
        static_cache_logits(loaded, seed)
    assert [call.k.shape[2] for call in recorder.layer(0)] == [9, 10, 11, 12, 13, 14]


def test_right_padding_makes_no_steps(seed):
    loaded, tokens = tiny(), prompt(seed, 2, 8)
    real = torch.ones_like(tokens)
    real[1, 5:] = 0
    expected = loaded.model(tokens[1:, :5]).logits
    with models.attention(loaded, recorder := Recorder()), torch.inference_mode():
        actual = loaded.model(tokens, attention_mask=real).logits[1:, :5]
    assert recorder.calls[0].lengths.tolist() == [list(range(1, 9)), [1, 2, 3, 4, 5, 0, 0, 0]]
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("additive", [False, True])
def test_ready_made_mask(additive, seed):
    loaded, tokens = tiny(), prompt(seed, 2, 8)
    visible = torch.ones(8, 8, dtype=torch.bool).tril()
    visible[5:, 1:3] = False
    mask = torch.zeros(8, 8).masked_fill(~visible, torch.finfo(torch.float32).min)
    expected = loaded.model(tokens, attention_mask=mask.expand(2, 1, 8, 8)).logits
    given = mask if additive else visible
    with models.attention(loaded, recorder := Recorder(softmax_hook)), torch.inference_mode():
        actual = loaded.model(tokens, attention_mask=given.expand(2, 1, 8, 8)).logits
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(recorder.calls[0].position, torch.arange(8).expand(2, -1))
    with models.attention(loaded, models.dense), pytest.raises(ValueError, match="position bias"):
        loaded.model(tokens, attention_mask=(mask / 2).clamp_min(-1.0).expand(2, 1, 8, 8))


def test_sequences(seed):
    loaded, tokens = tiny(), prompt(seed, 2, 4)
    with models.attention(loaded, recorder := Recorder(), sequence=[5, 2]):
        loaded.model(tokens)
    assert recorder.calls[0].sequence.tolist() == [5, 2]
    with (
        models.attention(loaded, models.dense, sequence=[5]),
        pytest.raises(ValueError, match="sequence has"),
    ):
        loaded.model(tokens)


def test_hook_output_is_checked(seed):
    loaded = tiny()
    with (
        models.attention(loaded, lambda call: call.q[:, :1]),
        pytest.raises(ValueError, match="hook returned shape"),
    ):
        loaded.model(prompt(seed, 1, 4))


# ----------------------------------------------------------------------------------------------------
# The context: phases, and the model as it was.


@pytest.mark.parametrize(("phases", "queries"), [("both", {1, 5}), ("prefill", {5}), ("decode", {1})])
def test_phases(phases, queries, seed):
    loaded = tiny()
    with models.attention(loaded, recorder := Recorder(), phases=phases):
        decode_logits(loaded, seed)
    assert {call.q.shape[2] for call in recorder.calls} == queries


def test_phase_left_alone_is_the_librarys_own(seed):
    loaded, tokens = tiny("qwen2-mixed"), prompt(seed, 2, 12)
    loaded.model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        expected = loaded.model(tokens).logits
        with models.attention(loaded, lambda call: torch.zeros_like(call.q), phases="decode"):
            assert torch.equal(loaded.model(tokens).logits, expected)
    with pytest.raises(ValueError, match="phases = 'never': both, prefill, decode"):
        models.attention(loaded, models.dense, phases="never").__enter__()


def test_no_hook_changes_nothing(seed):
    loaded, tokens = tiny(), prompt(seed, 1, 6)
    expected = loaded.model(tokens).logits
    with models.attention(loaded, None):
        assert loaded.model.config._attn_implementation == "eager"
        assert torch.equal(loaded.model(tokens).logits, expected)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_model_is_restored(implementation, seed):
    loaded, tokens = tiny(), prompt(seed, 1, 6)
    loaded.model.set_attn_implementation(implementation)
    expected = loaded.model(tokens).logits

    def broken(call):
        raise ZeroDivisionError

    with models.attention(loaded, models.dense):
        assert loaded.model.config._attn_implementation == "santa_hw"
    assert loaded.model.config._attn_implementation == implementation
    with pytest.raises(ZeroDivisionError), models.attention(loaded, broken):
        loaded.model(tokens)
    assert loaded.model.config._attn_implementation == implementation
    assert torch.equal(loaded.model(tokens).logits, expected)


def test_contexts_nest_and_models_do_not_mix(seed):
    outer, inner = Recorder(), Recorder()
    one, other = tiny("llama"), tiny("gpt-neox")
    tokens = prompt(seed, 1, 4)
    with models.attention(one, outer):
        with models.attention(one, inner), models.attention(other, Recorder()):
            one.model(tokens)
            other.model(tokens)
        assert (len(outer.calls), len(inner.calls)) == (0, 2)
        one.model(tokens)
        assert (len(outer.calls), len(inner.calls)) == (2, 2)
    assert one.model.config._attn_implementation == other.model.config._attn_implementation == "eager"


def test_the_name_alone_does_nothing(seed):
    loaded = tiny()
    loaded.model.set_attn_implementation("santa_hw")
    with pytest.raises(ValueError, match=r"outside santa_hw\.models\.attention"):
        loaded.model(prompt(seed, 1, 4))


# ----------------------------------------------------------------------------------------------------
# Features that the datapath lacks.

REFUSED = {
    "soft-capping": lambda: transformers.Gemma2Config(**SIZES, **GROUPED, head_dim=8),
    "learned attention sinks": lambda: transformers.GptOssConfig(
        **SIZES, **GROUPED, head_dim=8, num_local_experts=2, num_experts_per_tok=1
    ),
    "latent attention": lambda: transformers.DeepseekV3Config(
        **SIZES,
        num_key_value_heads=4,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=2,
    ),
    "cross-attention": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, add_cross_attention=True
    ),
    "AttentionInterface": lambda: transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=4),
    "position bias": lambda: transformers.FalconConfig(**SIZES, alibi=True),
}


@pytest.mark.parametrize("feature", REFUSED)
def test_refused_on_entry_by_name(feature):
    model = AutoModelForCausalLM.from_config(REFUSED[feature](), attn_implementation="eager")
    loaded = models.from_model(model)
    with pytest.raises(ValueError, match=feature), models.attention(loaded, models.dense):
        pytest.fail("entered")
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"softcap": 30.0}, r"layer 0 .* soft-capping \(softcap\)"),
        ({"s_aux": torch.zeros(4)}, "learned attention sinks"),
        ({"position_bias": torch.zeros(1, 4, 4, 4)}, "position bias"),
        ({"mystery": torch.zeros(1)}, "unknown tensor 'mystery'"),
        ({"is_causal": False}, "not causal"),
    ],
)
@pytest.mark.parametrize("phases", ["both", "decode"])
def test_refused_at_the_call_by_name(argument, message, phases, seed):
    loaded = tiny()
    with models.attention(loaded, models.dense, phases=phases), pytest.raises(ValueError, match=message):
        loaded.model(prompt(seed, 1, 4), **argument)


def test_dropout_is_refused():
    loaded = tiny(attention_dropout=0.1)
    loaded.model.train()
    with pytest.raises(ValueError, match="dropout"), models.attention(loaded, models.dense):
        pytest.fail("entered")
