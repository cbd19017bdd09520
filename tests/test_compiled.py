"""Machine code that is kept: never older than its sources, and no obstacle where it cannot be kept."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import config

from santa_hw import compiled

ROOT = Path(compiled.__file__).parent
DECORATED = {"compiled", "kept"}
INNER = "from santa_hw.compiled import compiled\n\n@compiled\ndef inner(x):\n    return x + {}\n"
OUTER = (
    "from santa_hw.compiled import compiled\nfrom inner import inner\n\n@compiled\ndef outer(x):\n    return inner(x)\n"
)


@pytest.fixture
def outer(tmp_path, monkeypatch):
    """Write two files, one of which calls the other's function, and import them as a new process would."""
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def fresh(number):
        (tmp_path / "inner.py").write_text(INNER.format(number))
        (tmp_path / "outer.py").write_text(OUTER)
        for name in ("inner", "outer"):
            sys.modules.pop(name, None)
        compiled.folder.cache_clear()
        return importlib.import_module("outer").outer

    yield fresh
    compiled.folder.cache_clear()
    for name in ("inner", "outer"):
        sys.modules.pop(name, None)


def loaded(function):
    """How often the function came out of the cache."""
    return sum(function.stats.cache_hits.values())


def test_a_change_in_what_is_called_compiles_the_caller_anew(outer):
    assert outer(1)(40) == 41
    again = outer(1)
    assert again(40) == 41
    assert loaded(again) == 1
    assert outer(2)(40) == 42
    assert config.CACHE_DIR.endswith("cache")


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 100])
def test_torn_files_are_compiled_anew(outer, tmp_path, kind, left):
    assert outer(1)(40) == 41
    files = [*(tmp_path / "cache").rglob(f"outer.*.{kind}")]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:left])
    again = outer(1)
    assert again(40) == 41
    assert loaded(again) == 0
    assert loaded(outer(1)) == 0
    assert [file.stat().st_size > 100 for file in files] == [True]


def test_where_nothing_can_be_kept_everything_runs(outer, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file"))
    assert outer(1)(40) == 41
    assert compiled.folder() is None
    assert not [*tmp_path.rglob("*.nb[ic]")]


@pytest.mark.parametrize("name, place", [("SANTA_HW_CACHE", "numba"), ("NUMBA_CACHE_DIR", "")])
def test_it_is_in_the_users_cache_or_where_numba_is_told(tmp_path, name, place):
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    environment |= {name: "kept", "PYTHONPATH": str(ROOT.parent)}
    command = [sys.executable, "-c", "from santa_hw.compiled import folder; print(folder())"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    assert Path(result.stdout.strip()).parent == tmp_path / "kept" / place


def test_every_compiled_function_is_kept_in_this_way():
    others = [file for file in ROOT.rglob("*.py") if re.search(r"njit|\bcache=True", file.read_text("utf-8"))]
    assert others == [Path(compiled.__file__)]


def test_compiled_functions_take_nothing_from_files_that_do_not_count():
    """numba compiles what a function calls, and the constants that it names, into its machine code."""
    counted = {
        file.relative_to(ROOT.parent).with_suffix("").as_posix().replace("/", ".") for file in compiled.sources()
    }
    for file in compiled.sources():
        tree = ast.parse(file.read_text("utf-8"))
        imported = {
            alias.asname or alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("santa_hw.")
            for alias in node.names
        }
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and DECORATED
            & {name.id for each in node.decorator_list for name in ast.walk(each) if isinstance(name, ast.Name)}
        ]
        assert functions or file == Path(compiled.__file__)
        named = {
            name.id
            for function in functions
            for part in function.body
            for name in ast.walk(part)
            if isinstance(name, ast.Name)
        }
        assert {imported[name] for name in named & set(imported)} <= counted, file
