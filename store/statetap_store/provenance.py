"""Provenance: where the samples of a shard come from."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

#: Stands between the values of samples that come from several places.
_AND: Final = ", "


@dataclass(frozen=True, slots=True)
class Provenance:
    """Facts of the run, the worker and the server, written into every shard's root attributes."""

    #: Name of the run.
    run: str
    #: Name of the worker process.
    worker: str
    #: Host name of the server that computed the states.
    host: str
    sglang_version: str
    patch_version: str
    #: Value of ``--return-aux-hidden-state-layer-ids`` that the server was started with.
    raw_layer_ids: tuple[int, ...]
    #: Digests of the tokenizer's files and of the chat template that made the prompts; empty where
    #: these came as token ids.
    tokenizer_digest: str = ""
    template_digest: str = ""


def joined_provenance(parts: Iterable[Provenance]) -> Provenance:
    """The provenance of samples from several places: of each text all values, each once.

    Raises:
        ValueError: the raw layer ids are not the same everywhere.
    """
    values: dict[str, dict[Any, None]] = {field.name: {} for field in fields(Provenance)}
    for part in parts:
        for name, seen in values.items():
            value = getattr(part, name)
            # What was joined before is taken apart.
            seen.update(dict.fromkeys(value.split(_AND) if isinstance(value, str) else [value]))
    raw_layer_ids = values.pop("raw_layer_ids")
    if len(raw_layer_ids) != 1:
        found = " and ".join(str(list(layers)) for layers in raw_layer_ids)
        raise ValueError(f"the raw layer ids are {found}")
    texts = {name: _AND.join(filter(None, seen)) for name, seen in values.items()}
    return Provenance(**texts, raw_layer_ids=next(iter(raw_layer_ids)))
