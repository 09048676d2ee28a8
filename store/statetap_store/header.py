"""A shard's HDF5 header: datasets, attributes, and how they become the file's first bytes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from statetap_contract import CaptureSpec, CheckError

from statetap_store.dtypes import storage_dtype
from statetap_store.header_file import ENDLESS, HeaderFile
from statetap_store.index_row import ROW_DTYPE
from statetap_store.layout import BACKUP_BYTES, BACKUP_OFFSET, PAGE_BYTES, ShardLayout
from statetap_store.provenance import Provenance

FORMAT: Final = "statetap-shard"
FORMAT_VERSION: Final = 1

#: First bytes of every HDF5 file.
HDF5_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"

#: File format versions that HDF5 may use: what 1.10 reads, with checksums in the metadata.
_LIBVER: Final = ("v110", "v110")

#: What h5py raises for a header that it cannot make sense of.
_UNREADABLE: Final = (OSError, KeyError, RuntimeError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """All that a shard says before its first sample. Written once, and once more by sealing."""

    spec: CaptureSpec
    provenance: Provenance
    #: ISO 8601, UTC.
    created: str
    is_sealed: bool
    layout: ShardLayout

    def attributes(self) -> dict[str, Any]:
        """The root attributes."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "spec": json.dumps(self.spec.to_json(), sort_keys=True),
            "spec_digest": self.spec.digest,
            "model": self.spec.model,
            "revision": self.spec.revision,
            "layers": np.array(self.spec.layers, "<i8"),
            "slots": list(self.spec.slot_names),
            "hidden_size": self.spec.hidden_size,
            "norm": self.spec.norm,
            "dtype": self.spec.dtype,
            "run": self.provenance.run,
            "worker": self.provenance.worker,
            "host": self.provenance.host,
            "sglang_version": self.provenance.sglang_version,
            "patch_version": self.provenance.patch_version,
            "raw_layer_ids": np.array(self.provenance.raw_layer_ids, "<i8"),
            "tokenizer_digest": self.provenance.tokenizer_digest,
            "template_digest": self.provenance.template_digest,
            "created": self.created,
            # Not a bool: HDF5 makes that an enum, which PyTables cannot read.
            "sealed": np.uint8(self.is_sealed),
        }

    def encode(self) -> bytes:
        """The bytes a shard starts with, HDF5 metadata only, a multiple of a page.

        All metadata is written first, without storage for any dataset. Then each dataset is
        given its storage in a session of its own, whose alignment is the very offset that the
        layout asks for: the first multiple of it that is free. Thus a sealed header has exact
        sizes and the old offsets.
        """
        file = HeaderFile()
        with h5py.File(file, "w", libver=_LIBVER) as hdf5:
            for name, value in self.attributes().items():
                hdf5.attrs[name] = value
            for name, (shape, dtype, _) in self.datasets().items():
                _create_dataset(hdf5, name, shape, dtype)
            hdf5["states"].attrs["dtype"] = self.spec.dtype
        num_bytes = -(-file.length // PAGE_BYTES) * PAGE_BYTES
        for name, (shape, dtype, offset) in self.datasets().items():
            if 0 in shape:
                continue
            with h5py.File(
                file, "r+", libver=_LIBVER, alignment_threshold=1, alignment_interval=offset
            ) as hdf5:
                hdf5[name][(0,) * len(shape)] = np.zeros((), dtype)
        return file.header(num_bytes)

    def datasets(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any], int]]:
        """Shape, dtype and offset of each dataset, in file order."""
        layout = self.layout
        num_samples, num_tokens = layout.capacity_samples, layout.capacity_tokens
        states_shape = (num_tokens, self.spec.row_width)
        return {
            "header_backup": ((BACKUP_BYTES,), np.dtype("u1"), BACKUP_OFFSET),
            "index": ((num_samples,), ROW_DTYPE, layout.index_offset),
            "input_ids": ((num_tokens,), np.dtype("<i4"), layout.token_ids_offset),
            "loss_mask": ((num_tokens,), np.dtype("u1"), layout.loss_mask_offset),
            "states": (states_shape, storage_dtype(self.spec.dtype), layout.states_offset),
        }

    @classmethod
    def decode(cls, header: bytes, path: Path) -> "ShardHeader":
        """Reads a header.

        Raises:
            CheckError: kind ``shard-not-hdf5``, ``shard-foreign``, ``shard-newer`` or
                ``shard-unreadable``.
        """
        if not header.startswith(HDF5_SIGNATURE):
            raise CheckError(
                "shard-not-hdf5", f"{path} is not an HDF5 file, so it cannot be a statetap shard"
            )
        try:
            with h5py.File(HeaderFile(header, ENDLESS), "r") as hdf5:
                attributes = dict(hdf5.attrs)
                _check_format(attributes, path)
                return _read_header(hdf5, attributes)
        except _UNREADABLE as error:
            raise CheckError(
                "shard-unreadable",
                f"the HDF5 header of {path} cannot be read as that of a statetap shard, "
                f"and it holds no intact copy: restore the file or extract its samples again",
            ) from error


def _create_dataset(
    hdf5: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    element = h5py.h5t.py_create(dtype, logical=True)
    space = h5py.h5s.create_simple(shape)
    h5py.h5d.create(hdf5.id, name.encode(), element, space, properties)


def _check_format(attributes: dict[str, Any], path: Path) -> None:
    if attributes.get("format") != FORMAT:
        raise CheckError("shard-foreign", f"{path} is an HDF5 file but not a statetap shard")
    version = int(attributes["format_version"])
    if version > FORMAT_VERSION:
        raise CheckError(
            "shard-newer",
            f"{path} has format version {version} and this statetap reads up to "
            f"{FORMAT_VERSION}: install a newer statetap",
        )


def _read_header(hdf5: Any, attributes: dict[str, Any]) -> ShardHeader:
    spec = CaptureSpec.from_json(json.loads(attributes["spec"]))
    index, states = hdf5["index"], hdf5["states"]
    header = ShardHeader(
        spec=spec,
        provenance=Provenance(
            run=str(attributes["run"]),
            worker=str(attributes["worker"]),
            host=str(attributes["host"]),
            sglang_version=str(attributes["sglang_version"]),
            patch_version=str(attributes["patch_version"]),
            raw_layer_ids=tuple(int(layer) for layer in attributes["raw_layer_ids"]),
            tokenizer_digest=str(attributes["tokenizer_digest"]),
            template_digest=str(attributes["template_digest"]),
        ),
        created=str(attributes["created"]),
        is_sealed=bool(attributes["sealed"]),
        layout=ShardLayout(
            capacity_samples=index.shape[0],
            capacity_tokens=states.shape[0],
            row_bytes=spec.row_bytes,
            # A dataset without elements has no place.
            index_offset=index.id.get_offset() or 0,
            token_ids_offset=hdf5["input_ids"].id.get_offset() or 0,
            loss_mask_offset=hdf5["loss_mask"].id.get_offset() or 0,
            states_offset=states.id.get_offset() or 0,
        ),
    )
    _check_consistent(header, hdf5, attributes)
    return header


def _check_consistent(header: ShardHeader, hdf5: Any, attributes: dict[str, Any]) -> None:
    """Everything that is said twice must agree. Raises ValueError."""
    for name, expected in header.attributes().items():
        if not np.array_equal(attributes[name], expected):
            raise ValueError(f"attribute {name!r} is {attributes[name]!r}, not {expected!r}")
    for name, (shape, dtype, _) in header.datasets().items():
        if hdf5[name].shape != shape or hdf5[name].dtype != dtype:
            raise ValueError(f"dataset {name!r} has shape {hdf5[name].shape}, not {shape}")
