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
JOB_VERSION: Final = 3

#: The only form a run's name has, because it becomes part of a path.
RUN_NAME_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: Most tokens a message may hold: bounds what unpacking can cost.
MAX_TOKENS: Final = 4 * 1024 * 1024

_INT32_BYTES: Final = 4

#: What is said of a job that cannot be read: it may hold anything, and a ledger keeps it.
_MOST_SAID_CHARS: Final = 500


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
    #: How often the prompt has been given out afresh, from 1: each ``rerun`` counts on. Retries of
    #: a worker do not count.
    attempt: int = 1

    def __post_init__(self) -> None:
        if not RUN_NAME_FORM.fullmatch(self.run):
            raise ValueError(f"run name {self.run!r} must match {RUN_NAME_FORM.pattern}")
        if not KEY_FORM.fullmatch(self.spec_digest):
            raise ValueError(f"spec digest {self.spec_digest!r} is not 32 hex digits")
        for name in ("tokenizer_digest", "template_digest"):
            value = getattr(self, name)
            if value and not KEY_FORM.fullmatch(value):
                raise ValueError(f"{name} {value!r} is not 32 hex digits")
        if self.attempt < 1:
            raise ValueError(f"attempt {self.attempt} is no count from 1")

    def __str__(self) -> str:
        """What Flower shows of a message, whose ids are packed."""
        words = self.key, f"{self.prompt.num_tokens} tokens", f"run {self.run}"
        return ", ".join((*words, f"attempt {self.attempt}"))

    @classmethod
    def of(
        cls,
        run: str,
        spec_digest: str,
        prompt: Prompt,
        tokenizer_digest: str = "",
        template_digest: str = "",
        attempt: int = 1,
    ) -> "Job":
        """The job for a prompt, with its key computed."""
        key = sample_key(spec_digest, prompt)
        return cls(key, run, spec_digest, prompt, tokenizer_digest, template_digest, attempt)

    def to_message(self) -> dict[str, object]:
        """A small JSON object. Ids have as few bytes as the largest needs, then zlib and base64.

        Fewer bytes are not only less to keep: zlib takes half the time for them.
        """
        id_bytes, packed = _packed(self.prompt)
        return {
            "version": JOB_VERSION,
            "key": self.key,
            "run": self.run,
            "spec": self.spec_digest,
            "tokenizer": self.tokenizer_digest,
            "template": self.template_digest,
            "attempt": self.attempt,
            "id_bytes": id_bytes,
            "token_ids": packed,
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
            attempt = fields.take("attempt", int)
            token_ids = _unpacked(fields.take("id_bytes", int), fields.take("token_ids", str))
            bounds = fields.take_ints("loss_spans")
            fields.finish()
            if len(bounds) % 2:
                raise ValueError("the job's loss spans are not pairs")
            spans = tuple(zip(bounds[::2], bounds[1::2], strict=True))
            job = cls.of(run, spec_digest, Prompt(token_ids, spans), *text_digests, attempt)
        except (ValueError, OverflowError, zlib.error, binascii.Error) as error:
            why = str(error)[:_MOST_SAID_CHARS]
            raise RejectError("job-unreadable", f"cannot read a job: {why}") from error
        if job.key != key:
            raise RejectError(
                "job-unreadable", f"job {key!r} holds another prompt, whose key is {job.key}"
            )
        return job


def _packed(prompt: Prompt) -> tuple[int, str]:
    """Bytes of an id, and the ids in little-endian order, compressed, as base64."""
    raw = prompt.token_bytes()
    planes = [raw[place::_INT32_BYTES] for place in range(_INT32_BYTES)]
    while len(planes) > 1 and planes[-1].count(0) == len(planes[-1]):
        planes.pop()
    id_bytes = len(planes)
    narrow = bytearray(id_bytes * prompt.num_tokens)
    for place, plane in enumerate(planes):
        narrow[place::id_bytes] = plane
    return id_bytes, base64.b64encode(zlib.compress(narrow, 1)).decode()


def _unpacked(id_bytes: int, packed: str) -> "array[int]":
    """Ids of a message; the decompressor stops at ``MAX_TOKENS``, whatever the input claims."""
    if not 1 <= id_bytes <= _INT32_BYTES:
        raise ValueError(f"the job's ids have {id_bytes} bytes each")
    decompressor = zlib.decompressobj()
    narrow = decompressor.decompress(base64.b64decode(packed, validate=True), id_bytes * MAX_TOKENS)
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise ValueError(f"the job's token ids are cut or exceed {MAX_TOKENS} tokens")
    num_tokens, rest = divmod(len(narrow), id_bytes)
    if rest:
        raise ValueError("the job's token ids end in the middle of one")
    raw = bytearray(_INT32_BYTES * num_tokens)
    for place in range(id_bytes):
        raw[place::_INT32_BYTES] = narrow[place::id_bytes]
    token_ids = array("i")
    token_ids.frombytes(raw)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return token_ids
