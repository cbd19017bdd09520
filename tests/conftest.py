"""Seeds: whatever a random test drew can be drawn again from what it printed."""

import os
import zlib

import numpy as np
import pytest
from hypothesis import settings

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
