"""Manifests for the tests of them."""

import pytest

from .manifests import FOLDERS, SYSTEMS, Manifest, manifests


@pytest.fixture(params=FOLDERS)
def documents(request: pytest.FixtureRequest) -> list[Manifest]:
    """The manifests of one folder, rendered."""
    return manifests(request.param)


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> list[Manifest]:
    """The manifests of one whole system, rendered."""
    return manifests(request.param)


@pytest.fixture
def cpu_system() -> list[Manifest]:
    """The system without a GPU, rendered."""
    return manifests("overlays/cpu")
