"""Damages by hand: what becomes of small samples."""

import pytest
import torch
from statetap_contract import CaptureSpec
from statetap_producer.exporting.model_norm import ModelNorm
from statetap_store import SampleTable
from statetap_store.torch_dataset import TensorSample
from train_drafter.damage import (
    Samples,
    layers_swapped,
    rows_shifted,
    states_exchanged,
    without_aux,
)

from .conftest import Arrays, Store

#: Three aux layers of two elements.
SPEC = CaptureSpec("made", "r", (1, 2, 3), "post", 2, "float32")


def numbered(number: int, num_tokens: int) -> Arrays:
    """Row t of sample n: aux states n + t/10 + 1000, 2000, 3000 by layer; last state n + t/10."""
    rows = number + torch.arange(num_tokens)[:, None] / 10
    aux = torch.cat([(rows + 1000 * layer).expand(-1, 2) for layer in (1, 2, 3)], dim=1)
    token_ids = [100 * number + place for place in range(num_tokens)]
    return token_ids, [place % 2 for place in range(num_tokens)], aux, rows.expand(-1, 2)


@pytest.fixture
def table(store: Store) -> SampleTable:
    """Samples 0 to 4 of 9, 3, 5, 8 and 4 tokens."""
    lengths = (9, 3, 5, 8, 4)
    return store(SPEC, [numbered(number, length) for number, length in enumerate(lengths)])


def rows_of(sample: TensorSample) -> tuple[list[int], list[int], list[float], list[float]]:
    """Ids, mask, what the first aux element says and what the last state says, rounded."""
    return (
        sample["input_ids"].tolist(),
        sample["loss_mask"].tolist(),
        [round(float(value), 1) for value in sample["aux_states"][:, 0]],
        [round(float(value), 1) for value in sample["last_states"][:, 0]],
    )


def test_nothing_done(table: SampleTable) -> None:
    assert rows_of(Samples(table)[1]) == (
        [100, 101, 102],
        [0, 1, 0],
        [1001, 1001.1, 1001.2],
        [1, 1.1, 1.2],
    )


def test_rows_shifted(table: SampleTable) -> None:
    """Token 101 has the states of token 100."""
    found = rows_of(Samples(table, damage=rows_shifted)[1])
    assert found == ([101, 102], [1, 0], [1001, 1001.1], [1, 1.1])


def test_layers_swapped(table: SampleTable) -> None:
    """The third layer's states come first, the last state stays."""
    sample = Samples(table, damage=layers_swapped)[1]
    assert sample["aux_states"][0].tolist() == [3001, 3001, 2001, 2001, 1001, 1001]
    assert torch.equal(sample["last_states"], Samples(table)[1]["last_states"])


def test_without_aux(table: SampleTable) -> None:
    """Zeros of the same shape."""
    sample = Samples(table, damage=without_aux)[1]
    assert torch.equal(sample["aux_states"], torch.zeros(3, 6))
    assert rows_of(sample)[3] == [1, 1.1, 1.2]


def test_states_exchanged(table: SampleTable) -> None:
    """By length they are 1, 4, 2, 3, 0: 1 and 4 exchange, 2 and 3, and 0 takes those of 3."""
    damaged = Samples(table, damage=states_exchanged)
    assert rows_of(damaged[1]) == (
        [100, 101, 102],
        [0, 1, 0],
        [1004, 1004.1, 1004.2],
        [4, 4.1, 4.2],
    )
    assert rows_of(damaged[4])[2] == [1001, 1001.1, 1001.2]
    assert [rows_of(damaged[place])[3][0] for place in range(5)] == [3, 4, 3, 2, 1]
    for place in range(5):
        assert len({len(part) for part in rows_of(damaged[place])}) == 1


def test_states_of_before_the_norm_get_it(table: SampleTable) -> None:
    """As RMSNorm is defined: over the root mean square, times the weight."""
    norm = ModelNorm(torch.tensor([1.0, 3.0]), 0.5)
    sample = Samples(table, norm)[1]
    expected = [[value / (value**2 + 0.5) ** 0.5 * w for w in (1, 3)] for value in (1, 1.1, 1.2)]
    torch.testing.assert_close(sample["last_states"], torch.tensor(expected))
    assert torch.equal(sample["aux_states"], Samples(table)[1]["aux_states"])
