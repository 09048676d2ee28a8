"""Provenance: where the samples of a shard come from."""

from dataclasses import dataclass


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
