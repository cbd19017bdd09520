"""Texts from files and from the hub."""

import sys
import types

import pytest

from santa_hw import models
from santa_hw.models import texts


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
