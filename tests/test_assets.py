"""The data folders are found from a checkout, from an editable install and from a wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from santa_hw import assets

CHECKOUT = Path(__file__).resolve().parents[1]


def pretend_installed_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = folder / "santa_hw"
    package.mkdir(parents=True)
    monkeypatch.setattr(assets, "_PACKAGE", package)
    return package


@pytest.mark.parametrize("name", assets.NAMES)
def test_checkout_has_every_folder(name: str) -> None:
    assert assets.path(name) == CHECKOUT / name


def test_checkout_sees_edits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed_in(tmp_path, monkeypatch)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "energy").mkdir()
    (tmp_path / "energy" / "mine.toml").write_text("new")
    assert (assets.path("energy") / "mine.toml").read_text() == "new"


def test_package_comes_before_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pretend_installed_in(tmp_path, monkeypatch)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "gpu").mkdir()
    (package / "_gpu").mkdir()
    assert assets.path("gpu") == package / "_gpu"


def test_neighbouring_package_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed_in(tmp_path, monkeypatch)
    (tmp_path / "gpu").mkdir()
    with pytest.raises(FileNotFoundError, match=r"'gpu'.*reinstall"):
        assets.path("gpu")


@pytest.mark.parametrize("name", ["", "GPU", "../tests", "santa_hw", "energy/"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(ValueError, match="allowed are energy, gpu, rtl_models"):
        assets.path(name)


def build(target: str, folder: Path) -> Path:
    """Build a wheel, or an editable one, as pip would."""
    code = f"from hatchling import build; print(build.build_{target}({str(folder)!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def test_wheel_is_whole(tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        wheel.extractall(site)
    assert {entry.name for entry in site.iterdir() if entry.suffix != ".dist-info"} == {"santa_hw"}
    assert (site / "santa_hw" / "py.typed").is_file()
    code = "from santa_hw import assets; print(*map(assets.path, assets.NAMES), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(site / "santa_hw" / f"_{name}") for name in assets.NAMES]
    for name in assets.NAMES:
        ours = {
            file.relative_to(CHECKOUT / name): file.read_bytes()
            for file in (CHECKOUT / name).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        packed = site / "santa_hw" / f"_{name}"
        assert ours
        assert {file: (packed / file).read_bytes() for file in ours} == ours


def test_editable_install_copies_nothing(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("editable", tmp_path)) as wheel:
        assert not [name for name in wheel.namelist() if name.startswith("santa_hw/")]


def test_package_is_light() -> None:
    code = "import sys, santa_hw, santa_hw.assets; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "numba", "torch", "matplotlib", "typer"} & set(done.stdout.split())


def test_the_cache_is_absolute_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANTA_HW_CACHE", "here")
    assert assets.cache() == tmp_path / "here"
    monkeypatch.setenv("SANTA_HW_CACHE", "~nobody-of-this-name/here")
    with pytest.raises(ValueError, match="no home folder: SANTA_HW_CACHE=FOLDER"):
        assets.cache()
    monkeypatch.delenv("SANTA_HW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "shared")
    assert assets.cache() == tmp_path / "shared" / "santa-hw"
