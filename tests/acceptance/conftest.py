"""What every acceptance test judges rows with."""

from pathlib import Path

import pytest
from statetap_local.services import LocalServer

from .capturing import Capture, capture_all
from .reference import Reference


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


@pytest.fixture
def capture(server: LocalServer, dumps: Path) -> Capture:
    """Captures prompts on the test's server, all in flight at once."""
    return lambda prompts: capture_all(server.url, dumps, prompts)
