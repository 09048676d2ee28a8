"""The run record: what ``run.json`` says of a run."""

from dataclasses import asdict, dataclass
from typing import Final, Self

from statetap_contract import CaptureSpec
from statetap_contract.strict_json import FieldReader, read_record

from statetap_producer.prompts.prompt_rules import PromptRules

#: Version of ``run.json`` and of the plan beside it. Every other is refused.
RUN_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows left out of the plan for one reason; ``left-out.jsonl`` names each of them."""

    kind: str
    num_rows: int
    #: The first such row: its place in the dataset, and what was wrong with it.
    first_file: str
    first_line: int
    first_message: str

    @classmethod
    def from_json(cls, value: object) -> Self:
        return read_record(cls, value, "a reason")


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """Numbers of a plan. ``num_read = num_planned + num_duplicates + rows left out``."""

    num_read: int
    num_planned: int
    #: Rows with the same token ids and loss mask as an earlier one.
    num_duplicates: int
    #: Prompts of which only the beginning is planned.
    num_cut: int
    #: Over the planned prompts.
    num_tokens: int
    num_loss_tokens: int
    #: Tokens of the shortest, the middle and the longest prompt.
    min_tokens: int
    median_tokens: int
    max_tokens: int
    #: Prompts of 1 token, of 2 and 3, of 4 to 7 and so on: the k-th has 2^k to 2^(k+1) - 1.
    histogram: tuple[int, ...]

    @classmethod
    def from_json(cls, value: object) -> Self:
        return read_record(cls, value, "the run's counts")


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """All that a plan follows from: the same inputs give the same plan, byte for byte."""

    spec: CaptureSpec
    #: Name of the dataset, and the digest of its bytes.
    dataset: str
    dataset_digest: str
    #: Empty where the model's folder holds none and no row needed it.
    tokenizer_digest: str
    template_digest: str
    rules: PromptRules


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Identity and numbers of a run."""

    name: str
    inputs: PlanInputs
    counts: PlanCounts
    left_out: tuple[LeftOut, ...]

    @property
    def sample_bytes(self) -> int:
        """Bytes of a shard that each token takes: its row, an int32 id and a byte of the mask."""
        return self.inputs.spec.row_bytes + 4 + 1

    @property
    def shard_bytes(self) -> int:
        """Bytes that all samples take in shards."""
        return self.counts.num_tokens * self.sample_bytes

    def to_json(self) -> dict[str, object]:
        """A JSON object; ``from_json`` reads it back."""
        inputs = self.inputs
        return {
            "version": RUN_VERSION,
            "name": self.name,
            "spec": inputs.spec.to_json(),
            "dataset": {"name": inputs.dataset, "digest": inputs.dataset_digest},
            "tokenizer_digest": inputs.tokenizer_digest,
            "template_digest": inputs.template_digest,
            "rules": asdict(inputs.rules),
            "counts": asdict(self.counts),
            "left_out": [asdict(reason) for reason in self.left_out],
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Reads ``to_json``'s object. Raises ValueError when it is not one."""
        fields = FieldReader(value, "the run record")
        if (version := fields.take("version", int)) != RUN_VERSION:
            raise ValueError(f"it has version {version}, this statetap reads {RUN_VERSION}")
        dataset = FieldReader(fields.take("dataset", dict), "the run's dataset")
        record = cls(
            name=fields.take("name", str),
            inputs=PlanInputs(
                spec=CaptureSpec.from_json(fields.take("spec", dict)),
                dataset=dataset.take("name", str),
                dataset_digest=dataset.take("digest", str),
                tokenizer_digest=fields.take("tokenizer_digest", str),
                template_digest=fields.take("template_digest", str),
                rules=PromptRules.from_json(fields.take("rules", dict)),
            ),
            counts=PlanCounts.from_json(fields.take("counts", dict)),
            left_out=tuple(map(LeftOut.from_json, fields.take("left_out", list))),
        )
        dataset.finish()
        fields.finish()
        return record
