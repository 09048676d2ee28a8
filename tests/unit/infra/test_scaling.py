"""The page on scaling computes its sizes from its own assumptions."""

import math
import re
from pathlib import Path

import pytest
from statetap_contract import UsageError
from statetap_producer.queueing.broker import Broker
from statetap_worker import cli

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "scaling.md").read_text()

UNITS = {"": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "min": 60, "h": 3600, "days": 86400}


def row(label: str) -> list[str]:
    """The cells behind the row's first, which begins with ``label``."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {label}"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def number(text: str) -> float:
    """A number as it stands in a cell, in bytes or seconds where it has a unit."""
    found = re.match(r"\**([\d,.]+) ?([A-Za-z]*)", text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * UNITS.get(found[2], 1)


def sizes(label: str) -> list[float]:
    return [number(cell) for cell in row(label)]


def assumed(label: str) -> float:
    return number(row(label)[0])


def close(shown: list[float], expected: list[float]) -> bool:
    """Equal but for rounding to two digits."""
    return shown == pytest.approx(expected, rel=0.05)


def test_sizes_follow_from_the_assumptions() -> None:
    """Rates, times, disks, dumps, shards and Redis, for each of the three systems."""
    num_tokens, prompt = assumed("tokens of the run"), assumed("tokens of a prompt")
    longest = assumed("longest prompt")
    row_bytes = [assumed("bytes of a row on the CPU"), *2 * [assumed("bytes of a row on a GPU")]]
    rates = [
        assumed("tokens/s of a server on 2 cores"),
        *2 * [assumed("tokens/s of a server on a GPU")],
    ]
    num_processes = [4, 16, 16]
    num_servers = [1, 8, 800]
    three = list(zip(num_servers, rates, row_bytes, num_processes, strict=True))
    # Ids and mask, and a share of the index row.
    stored = [each + 5 + 128 / prompt for each in row_bytes]
    disks = [num_tokens * each for each in stored]
    assert sizes("servers, each") == num_servers
    assert close(sizes("tokens/s |"), [many * rate for many, rate, _, _ in three])
    assert close(sizes("samples/s"), [many * rate / prompt for many, rate, _, _ in three])
    assert close(
        sizes("bytes/s to the disk of"), [r * s for r, s in zip(rates, stored, strict=True)]
    )
    assert close(
        sizes("bytes/s to disks"),
        [many * r * s for many, r, s in zip(num_servers, rates, stored, strict=True)],
    )
    assert close(sizes("time of the run"), [num_tokens / (m * r) for m, r, _, _ in three])
    assert close(sizes("disk, in all"), disks)
    assert close(
        sizes("disk of one server"), [d / m for d, m in zip(disks, num_servers, strict=True)]
    )
    assert close(
        sizes("shared memory of one server"),
        [many * (longest * (each + 4) + 4096) for _, _, each, many in three],
    )
    assert close(sizes("shards open"), [many * each for many, _, _, each in three])
    # Of the last system no process fills one.
    assert close(sizes("shards full")[:2], [disk / 2**34 for disk in disks[:2]])
    assert disks[2] / (800 * 16) < 2**34
    assert close(sizes("Redis: one taken"), [2700 * many * each for many, _, _, each in three])
    assert sizes("Redis: 10,000 waiting") == [27e6] * 3
    assert close(sizes("Redis: announcements"), [25 * num_tokens / prompt] * 3)
    assert close(sizes("connections to Redis"), [many * (8 + each) for many, _, _, each in three])
    assert close(
        sizes("Redis's own processor"),
        [many * (0.002 + rate / prompt * 514e-6) for many, rate, _, _ in three],
    )


def test_limits_follow_from_what_was_measured() -> None:
    """How many share one Redis, by its processor, its connections and its memory."""
    samples_s = assumed("tokens/s of a server on a GPU") / assumed("tokens of a prompt")
    num_servers = int(0.7 / (samples_s * 514e-6 + 0.002))
    assert f"at 70 % of one that is {num_servers} servers" in PAGE
    num_nodes = num_servers // 8
    assert num_nodes == 7
    assert f"seven nodes, {8 * num_nodes} servers," in PAGE
    assert f"{math.ceil(100 / num_nodes)} groups" in PAGE
    assert f"{10_000 // (8 + 16)} workers of 16 processes" in PAGE
    assert f"{0.8 * 1e9 / 25 / 1e6:.0f} million samples are these four fifths" in PAGE


def test_sentinels_are_refused_as_the_page_says() -> None:
    """By the producer and by a worker, at once, for an address that they do not know."""
    assert "refuse `sentinel://`" in PAGE
    for ask in (Broker, cli._check_redis):
        with pytest.raises(UsageError) as caught:
            ask("sentinel://127.0.0.1:26379/0")
        assert caught.value.kind == "redis-url"


def test_what_is_to_be_watched_is_there() -> None:
    """Every metric and kind that the page names stands on the pages that list them."""
    metrics = set(re.findall(r"\bstatetap_[a-z_]+", PAGE))
    assert len(metrics) > 5
    listed = (DOCS / "metrics.md").read_text()
    assert {metric for metric in metrics if f"`{metric}`" not in listed} == set()
    kinds = set(re.findall(r'kind="([a-z-]+)"|kind `([a-z-]+)`', PAGE))
    named = {either or other for either, other in kinds}
    faults = (DOCS / "faults.md").read_text()
    assert named
    assert {kind for kind in named if f"`{kind}`" not in faults} == set()
