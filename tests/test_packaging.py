"""A set-up installs what was tested: every requirement that `make` installs is pinned, and the pin is allowed."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parents[1]


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {
        canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines) if version
    }
    made = ("model", "rtl", "fpga", "dev")
    wanted = [Requirement(text) for text in [*project["dependencies"], *(t for extra in made for t in extras[extra])]]
    loose = [str(r) for r in wanted if canonicalize_name(r.name) not in {*pins, "santa-hw"}]
    assert not loose
    refused = [
        str(r) for r in wanted if r.name != "santa-hw" and not r.specifier.contains(pins[canonicalize_name(r.name)])
    ]
    assert not refused
