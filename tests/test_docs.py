"""The docs build without a warning, their links lead somewhere, and what they tell people to type exists."""

import dataclasses
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from typer.testing import CliRunner

from santa_hw.cli import app
from santa_hw.design import Design

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)


def fences(text: str, *languages: str) -> Iterator[str]:
    """Bodies of the fenced blocks in one of `languages`."""
    for match in FENCE.finditer(text):
        if match["language"] in languages:
            yield match["body"]


def shell_commands(text: str) -> Iterator[list[str]]:
    """What a page asks its reader to type, in words.

    A ``console`` block shows output too: there a ``$`` marks what is typed.
    """
    for language in ("bash", "sh", "console"):
        for body in fences(text, language):
            for line in body.replace("\\\n", " ").splitlines():
                prompt, words = re.fullmatch(r"\s*(\$ )?(.*)", line).groups()
                if language != "console" or prompt:
                    yield shlex.split(words, comments=True)


def commands_of(program: str) -> list[Any]:
    return [
        pytest.param(command, id=f"{page.stem}: {' '.join(command)}")
        for page in PAGES
        for command in shell_commands(page.read_text(encoding="utf-8"))
        if command[:1] == [program]
    ]


def check_options(program: typer.Typer, words: list[str]) -> None:
    """Parse `words` as the program would, but run nothing: ``--help`` acts once all options have parsed."""
    before = words[:1] if words and not words[0].startswith("-") else []
    done = CliRunner().invoke(program, [*before, "--help", *words[len(before) :]])
    assert done.exit_code == 0, done.output


def site(config: Path, folder: Path) -> None:
    build(load_config(str(config), strict=True, site_dir=str(folder)))


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    site(CHECKOUT / "mkdocs.yml", tmp_path)
    assert (tmp_path / "index.html").is_file()


@pytest.mark.parametrize("flaw", ["[gone](gone.md)", "[gone](index.md#gone)", "![gone](gone.png)"])
def test_site_with_a_dead_link_fails(flaw: str, tmp_path: Path) -> None:
    shutil.copy(CHECKOUT / "mkdocs.yml", tmp_path)
    shutil.copytree(CHECKOUT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{flaw}\n")
    with pytest.raises(Abort):
        site(tmp_path / "mkdocs.yml", tmp_path / "site")


def test_readme_links() -> None:
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    assert not [link for link in links if not (CHECKOUT / link).exists()]


@pytest.mark.parametrize("command", commands_of("santa-hw"))
def test_santa_hw_commands_exist(command: list[str]) -> None:
    check_options(app, command[1:])


@pytest.mark.parametrize("command", commands_of("make"))
def test_make_targets_exist(command: list[str]) -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    for word in command[1:]:
        pattern = rf"^{word.split('=')[0]} \?=" if "=" in word else rf"^{word}:"
        assert re.search(pattern, makefile, re.MULTILINE), f"the Makefile has no {word}"


def demo_app() -> typer.Typer:
    demo = typer.Typer()

    @demo.command()
    def accuracy(samples: str = "64") -> None:
        raise AssertionError("parsing must run nothing")

    @demo.command()
    def design() -> None:
        raise AssertionError("parsing must run nothing")

    return demo


def test_a_known_option_parses() -> None:
    check_options(demo_app(), ["accuracy", "--samples", "16,64"])


@pytest.mark.parametrize("line", ["accuracy --budget 16", "accuracy --samples", "akkuracy", "--akkurate"])
def test_an_unknown_option_is_found(line: str) -> None:
    with pytest.raises(AssertionError, match=r"No such|requires an argument"):
        check_options(demo_app(), line.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem == "gpu" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU: benchmarks/gpu/full.sh runs it")
    monkeypatch.chdir(tmp_path)
    row = {"method": "santa", "samples": 64, "kl_to_dense": 0.0, "unique_rows": 0.0}
    Path("results.json").write_text(json.dumps([row]))
    names: dict[str, Any] = {}
    for body in fences(page.read_text(encoding="utf-8"), "python"):
        exec(compile(body, str(page), "exec"), names)


def test_contract_lists_every_field_with_its_default() -> None:
    text = (CHECKOUT / "docs/reference/numeric-contract.md").read_text(encoding="utf-8")
    table = text.partition("Fields of a design point")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", table, re.MULTILINE))
    assert rows == {field.name: str(field.default) for field in dataclasses.fields(Design)}
