"""Names of shards."""

import pytest
from statetap_store.shard_names import shard_name, writer_of


@pytest.mark.parametrize("writer", ["w-00", "node-1.rack-02", "a", "w-00001"])
def test_a_name_tells_its_writer(writer: str) -> None:
    """Whatever dashes and digits the writer's own name has."""
    assert writer_of(shard_name(writer, 1)) == writer
    assert writer_of(shard_name(writer, 99_999)) == writer


@pytest.mark.parametrize("stem", ["merged", "w-00", "w-00-0001", "w-00-123456", "-00001"])
def test_any_other_name_stands_for_itself(stem: str) -> None:
    """A person may have given it."""
    assert writer_of(f"{stem}.h5") == stem
