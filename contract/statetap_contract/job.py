"""The message on the queue: all that a worker needs to extract one prompt."""

import base64
import binascii
import re
import sys
import zlib
from array import array
from dataclasses import dataclass
from typing import Final

from statetap_contract.errors import RejectError
from statetap_contract.prompt import KEY_FORM, Prompt, sample_key
from statetap_contract.strict_json import FieldReader

#: Version of the message format. A worker refuses every other.
JOB_VERSION: Final = 2

#: The only form a run's name has, because it becomes part of a path.
RUN_NAME_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: Most tokens a message may hold: bounds what unpacking can cost.
MAX_TOKENS: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt of one run."""

    #: Sample key; also the request id and the Celery task id.
    key: str
    #: Name of the run, which is the name of its folder.
    run: str
    #: Digest of the run's capture spec.
    spec_digest: str
    prompt: Prompt
    #: Digests of what turned conversations into prompts; they become provenance of the shards.
    #: Empty for prompts that came as token ids.
    tokenizer_digest: str = ""
    template_digest: str = ""

    def __post_init__(self) -> None:
        if not RUN_NAME_FORM.fullmatch(self.run):
            raise ValueError(f"run name {self.run!r} must match {RUN_NAME_FORM.pattern}")
        if not KEY_FORM.fullmatch(self.spec_digest):
            raise ValueError(f"spec digest {self.spec_digest!r} is not 32 hex digits")
        for name in ("tokenizer_digest", "template_digest"):
            value = getattr(self, name)
            if value and not KEY_FORM.fullmatch(value):
                raise ValueError(f"{name} {value!r} is not 32 hex digits")

    @classmethod
    def of(
        cls,
        run: str,
        spec_digest: str,
        prompt: Prompt,
        tokenizer_digest: str = "",
        template_digest: str = "",
    ) -> "Job":
        """The job for a prompt, with its key computed."""
        key = sample_key(spec_digest, prompt)
        return cls(key, run, spec_digest, prompt, tokenizer_digest, template_digest)

    def to_message(self) -> dict[str, object]:
        """A small JSON object. Ids are packed: int32, zlib, base64."""
        packed = zlib.compress(self.prompt.token_bytes(), 1)
        return {
            "version": JOB_VERSION,
            "key": self.key,
            "run": self.run,
            "spec": self.spec_digest,
            "tokenizer": self.tokenizer_digest,
            "template": self.template_digest,
            "token_ids": base64.b64encode(packed).decode(),
            "loss_spans": [bound for span in self.prompt.loss_spans for bound in span],
        }

    @classmethod
    def from_message(cls, message: object) -> "Job":
        """Reads ``to_message``'s object and proves its key.

        Raises:
            RejectError: kind ``job-unreadable``; a message that cannot be read now never can.
        """
        try:
            fields = FieldReader(message, "the job")
            if (version := fields.take("version", int)) != JOB_VERSION:
                raise ValueError(f"the job has version {version}, this is version {JOB_VERSION}")
            key, run = fields.take("key", str), fields.take("run", str)
            spec_digest = fields.take("spec", str)
            text_digests = fields.take("tokenizer", str), fields.take("template", str)
            token_ids = _unpack(fields.take("token_ids", str))
            bounds = fields.take_ints("loss_spans")
            fields.finish()
            if len(bounds) % 2:
                raise ValueError("the job's loss spans are not pairs")
            spans = tuple(zip(bounds[::2], bounds[1::2], strict=True))
            job = cls.of(run, spec_digest, Prompt(token_ids, spans), *text_digests)
        except (ValueError, OverflowError, zlib.error, binascii.Error) as error:
            raise RejectError("job-unreadable", f"cannot read a job: {error}") from error
        if job.key != key:
            raise RejectError(
                "job-unreadable", f"job {key!r} holds another prompt, whose key is {job.key}"
            )
        return job


def _unpack(packed: str) -> "array[int]":
    """Ids of a message; the decompressor stops at ``MAX_TOKENS``, whatever the input claims."""
    limit = 4 * MAX_TOKENS
    decompressor = zlib.decompressobj()
    raw = decompressor.decompress(base64.b64decode(packed, validate=True), limit)
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise ValueError(f"the job's token ids are cut or exceed {MAX_TOKENS} tokens")
    token_ids = array("i")
    token_ids.frombytes(raw)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return token_ids
