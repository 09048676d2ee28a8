"""The canary: a fixed prompt whose states must match those first recorded for the capture spec.

Model, revision and layers may be as agreed and the states still be others: weights changed in
place, other kernels or flags, a broken GPU. Such rows pass every check of a dump.
"""

import hashlib
import socket
import time
from array import array
from contextlib import suppress
from typing import Final

import structlog
from statetap_contract import (
    CaptureSpec,
    Job,
    MismatchError,
    MissingError,
    Prompt,
    RejectError,
    RetryError,
    ServerCapture,
    StopError,
    TransientError,
)

from statetap_worker.asking.server import Server
from statetap_worker.proving.canary_record import CanaryRecord
from statetap_worker.proving.drift import MEDIAN_BOUNDS, median_row_errors
from statetap_worker.proving.dump import Dump, delete_dump
from statetap_worker.proving.validate import proven_dump
from statetap_worker.settings import WorkerSettings

logger = structlog.get_logger(__name__)

#: Tokens of the prompt, where the vocabulary and the context have as many.
_NUM_TOKENS: Final = 32

#: Seconds for one answer, which may stand behind a full queue. With the wait for a server and the
#: answer to a job it must stay below the visibility timeout of the queue.
_ANSWER_S: Final = 240.0

#: Wrong answers after which a server is not asked again.
_MAX_WRONG: Final = 3

_LONGEST_WAIT_S: Final = 60.0


def canary_prompt(capture: ServerCapture) -> Prompt:
    """Different ids, spread evenly over the middle of the vocabulary.

    Special tokens, and those of images, lie at either end.
    """
    low, high = capture.vocab_size // 8, 5 * capture.vocab_size // 8
    num_tokens = max(1, min(_NUM_TOKENS, high - low, capture.context_length - 1))
    ids = (low + number * (high - low) // num_tokens for number in range(num_tokens))
    return Prompt(array("i", ids), ())


class Canary:
    """Holds a server against the record, for one process of a worker.

    Args:
        settings: the worker's.
        capture: what the server said of itself when the worker was started.
        process: the process's name, which no other of the workers that share ``runs`` has.
    """

    def __init__(self, settings: WorkerSettings, capture: ServerCapture, process: str) -> None:
        self._capture = capture
        self._spec = capture.spec
        self._dumps = settings.dumps
        self._record = CanaryRecord.of(settings.runs, capture.spec)
        owner = f"{socket.gethostname()}:{settings.runs}:{process}"
        key = _key(owner, capture.spec)
        self._job = Job(key, "canary", capture.spec.digest, canary_prompt(capture))
        # A killed process may have left one, and this one may never get a job. What cannot be
        # deleted is told of when the server is asked.
        with suppress(OSError):
            delete_dump(self._dumps, key)

    def wait_until_reproduced(self, server: Server, timeout_s: float) -> None:
        """Returns once the server has reproduced the recorded states, or made the first record.

        Raises:
            MissingError: kind ``server-not-ready``: it gave no answer for ``timeout_s`` seconds.
            StopError: kinds ``canary-drift``; ``canary-mismatch``: its dumps are wrong or not
                there, time after time; ``canary-refused``; ``dumps-unusable``;
                ``server-unpatched``; and those of ``CanaryRecord``.
        """
        begun = time.monotonic()
        num_wrong = 0
        told_kind = ""
        while True:
            try:
                dump = self._ask(server)
                break
            except RetryError as error:
                num_wrong += _is_answered(error)
                if num_wrong >= _MAX_WRONG:
                    raise StopError(
                        "canary-mismatch",
                        f"{server.url} answered even the canary prompt wrongly {num_wrong} times: "
                        f"{error}",
                    ) from error
                if time.monotonic() - begun > timeout_s:
                    raise MissingError(
                        "server-not-ready",
                        f"{server.url} did not compute the canary prompt in {timeout_s:.0f} s: "
                        f"{error}",
                    ) from error
                if error.kind != told_kind:
                    logger.warning(
                        "waiting for the canary prompt",
                        server=server.url,
                        kind=error.kind,
                        why=error.message,
                    )
                    told_kind = error.kind
                time.sleep(_wait_s(error))
        self._hold_against_record(dump, server.url)

    def _ask(self, server: Server) -> Dump:
        """The states that the server computes now, proven. Their file is gone already."""
        key = self._job.key
        try:
            # One that was left by a killed process would be handed out again.
            delete_dump(self._dumps, key)
            try:
                receipt = server.capture(self._job, _ANSWER_S)
                dump = proven_dump(self._dumps, receipt, self._job, self._capture)
            finally:
                delete_dump(self._dumps, key)
        except RejectError as error:
            raise StopError(
                "canary-refused", f"{server.url} refuses the canary prompt: {error}"
            ) from error
        except OSError as error:
            raise StopError(
                "dumps-unusable",
                f"cannot use {error.filename}: {error.strerror}; let the worker read and delete "
                "what the server writes there",
            ) from error
        return dump

    def _hold_against_record(self, dump: Dump, url: str) -> None:
        record = self._record
        if record.keep_first(dump):
            logger.info("canary recorded", record=str(record.path))
        recorded = record.read(self._job.prompt, self._spec)
        errors = median_row_errors(dump.states, recorded.states, self._spec)
        slot, worst = max(errors.items(), key=lambda item: item[1])
        bound = MEDIAN_BOUNDS[self._spec.dtype]
        if worst > bound:
            receipt = recorded.receipt()
            raise StopError(
                "canary-drift",
                f"{url} computes the canary prompt otherwise than was recorded: the middle row of "
                f"slot {slot} is off by {worst:.2g} of its length, {bound:.2g} is allowed; "
                f"{record.path} was made on {record.made()} by host {receipt.host} with SGLang "
                f"{receipt.sglang_version}; start the server as it was then, or delete that file "
                "to have what it computes now recorded and stored beside what is there",
            )


def _key(owner: str, spec: CaptureSpec) -> str:
    """A request id of the process's own, in the form of a sample key but never one.

    Always the same, so that what a killed process leaves is found by the next one.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"statetap-canary1")
    digest.update(f"{spec.digest} {owner}".encode())
    return digest.hexdigest()


def _is_answered(error: RetryError) -> bool:
    """Whether the server said that all was well, and it was not."""
    return isinstance(error, MismatchError) or error.kind == "dump-missing"


def _wait_s(error: RetryError) -> float:
    asked_s = error.retry_after_s if isinstance(error, TransientError) else None
    return 1.0 if asked_s is None else min(asked_s, _LONGEST_WAIT_S)
