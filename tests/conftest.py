"""Seeds: whatever a random test drew can be drawn again from what it printed."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import torch

    from santa_hw.models import LoadedModel

# A failing check in these says what differed, as it would in a test's own file.
pytest.register_assert_rewrite("architectures", "exact", "team_oracle")

# On CI a failure must come back on the next run; elsewhere every run tries new examples.
settings.register_profile("santa-hw", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("santa-hw")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=2605, help="where the random tests' seeds come from")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')} (--seed N for another)"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own, whatever else runs and in what order; a failing test shows it."""
    value = zlib.crc32(f"{request.config.getoption('--seed')} {request.node.nodeid}".encode())
    print(f"seed = {value}")
    return value


@pytest.fixture
def generator(seed: int) -> np.random.Generator:
    """A NumPy generator on this test's own seed."""
    return np.random.default_rng(seed)


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    """A torch generator on this test's own seed."""
    import torch  # what needs no torch does not wait for it

    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """The tiny random model, a file's own."""
    import tiny

    return tiny.loaded()


@pytest.fixture(scope="module")
def text() -> str:
    """Words of some kind, the same ones everywhere."""
    import tiny

    return tiny.prose(1, 600)
