"""``export.json``: what an export is, of what, and what was done to it."""

from typing import Final

from statetap_producer.exporting.norm_step import NormStep
from statetap_producer.exporting.sample_list import samples_digest
from statetap_producer.exporting.trainer_format import ExportContent, TrainerFormat

#: The record of an export that is whole.
RECORD_FILE: Final = "export.json"
#: The same record under this name, until all other files are there.
UNFINISHED_FILE: Final = "export.unfinished.json"

_VERSION: Final = 1

#: What was done to last hidden states, by how they were captured and how they are written.
_NORM_STEPS: Final = {
    ("post", "post"): "none",
    ("pre", "pre"): "none",
    ("pre", "post"): "the model's final norm was applied, in float32, rounded once",
    ("post", "pre"): (
        "divided by the final norm's weight, in float32, rounded once: that norm gives the "
        "captured states again, up to rounding; the scale before the norm is not the model's"
    ),
}


def export_record(
    trainer: TrainerFormat, content: ExportContent, step: NormStep, val_fraction: float
) -> dict[str, object]:
    """The record as a JSON object: the same samples and options give the same."""
    table, vocabulary = content.table, content.vocabulary
    record: dict[str, object] = {
        "version": _VERSION,
        "format": trainer.name,
        "capture_spec": table.spec.to_json(),
        "samples": {
            "digest": samples_digest(table),
            "num_samples": len(table),
            "num_train": content.num_train,
            "num_val": content.num_val,
            "num_tokens": int(table.num_tokens.sum()),
        },
        "val_fraction": val_fraction,
        "last_hidden_states": {
            "captured": step.captured,
            "written": step.written,
            "conversion": _NORM_STEPS[step.captured, step.written],
            # Two folders may have the same revision: one whose weights were changed in place.
            "norm_digest": None if step.norm is None else step.norm.digest,
        },
        "states_dtype": {"captured": table.spec.dtype, "written": content.spec.dtype},
        "draft_vocabulary": None,
    }
    if vocabulary is not None:
        record["draft_vocabulary"] = {
            "size": len(vocabulary.d2t),
            "target_size": len(vocabulary.t2d),
            "coverage": vocabulary.coverage,
        }
    return record | trainer.facts(content)
