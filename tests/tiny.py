"""A random model of two layers with a byte tokenizer, in memory or as a folder: a real model, in milliseconds."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from santa_hw import models

SPECIAL = ["<pad>", "<s>", "<end>"]
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}<end>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"
TEXT = "the hawk flew over a grey field while rain fell on old stone walls and nobody came to mend them"
WORDS = TEXT.split()


def tokenizer(*, chat: bool = True) -> PreTrainedTokenizerFast:
    """Every byte a token, so text survives whatever a random model says."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    core = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="<end>")
    if chat:
        fast.chat_template = TEMPLATE
    return fast


def loaded(seed: int = 0, *, positions: int = 4096, chat: bool = True) -> models.LoadedModel:
    """The model, its weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6)
    return models.from_model(model, tokenizer(chat=chat), name="tiny")


def folder(path: Path, seed: int = 0) -> Path:
    """The model as `save_pretrained` writes it."""
    model = loaded(seed)
    model.model.save_pretrained(path)
    model.tokenizer.save_pretrained(path)
    return path


def prose(seed: int, sentences: int = 200) -> str:
    """Sentences of random words, no two texts alike."""
    generator = torch.Generator().manual_seed(seed)
    lines = []
    for _ in range(sentences):
        picks = torch.randint(0, len(WORDS), (8,), generator=generator)
        lines.append(" ".join(WORDS[pick] for pick in picks).capitalize() + ".")
    return " ".join(lines)
