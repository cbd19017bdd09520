"""Random models of many architectures, ways to run them, and a hook that remembers its calls."""

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from santa_hw import models
from santa_hw.design import Design

# The name that every release of transformers 5 knows; the newest ones prefer `cache`.
OLD_CACHE_NAME = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")

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
DESIGN = Design(samples=16, max_keys=128, q_bits=8, k_bits=8, v_bits=8)


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


class Recorder:
    """A hook that remembers its calls, k and v copied: a cache grows under them."""

    def __init__(self, hook=models.dense):
        self.hook, self.calls = hook, []

    def __call__(self, call):
        self.calls.append(copy_call(call, k=call.k.clone(), v=call.v.clone()))
        return self.hook(call)

    def layer(self, index):
        return [call for call in self.calls if call.layer == index]


def calibrated(loaded, seed, **changes):
    windows = np.random.default_rng(seed).integers(3, VOCABULARY, (4, 40))
    return models.calibrate(loaded, windows)
