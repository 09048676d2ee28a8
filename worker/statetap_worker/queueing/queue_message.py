"""What an item of the queue must be for Celery to see it: a job, in the envelope of statetap.

Celery and kombu trust what lies in the queue: a field of another kind ends the worker, one of the
right kind has it call other tasks, kill its processes, or drop the message without a word. So a
message is not searched for what could do harm, but made anew from the few fields that are needed.
"""

import json
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import kombu.utils.json
from statetap_contract import KEY_FORM, RUN_NAME_FORM, TASK_NAME, RejectError, queue_name
from statetap_contract.job import MAX_TOKENS
from statetap_contract.strict_json import FieldReader
from statetap_contract.transport import VISIBILITY_TIMEOUT_S

#: No job is larger: its ids take 22 bytes for 4 tokens, its spans 9 a bound, where each second
#: token is a span of its own.
MOST_BYTES: Final = MAX_TOKENS * 22 // 4 + MAX_TOKENS * 9 + 4096

#: Lists and objects of a message, which bounds how deep it is nested and what memory it takes
#: when read. A job has less than twenty.
_MOST_BRACKETS: Final = 200

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_RETRIES: Final = 100
_MOST_SHOWN_CHARS: Final = 1024

#: What Celery acts on and statetap never sends.
_NO_CANVAS: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_NEVER_SENT: Final = ("compression", "expires", "group", "stamped_headers")


def read_message(item: bytes, queue: str) -> bytes:
    """The message that Celery is given for an item of the queue.

    Args:
        item: what was in the list.
        queue: whose list it was.

    Raises:
        RejectError: kinds ``message-oversized``; ``message-unreadable``: it is no job in an
            envelope, or does not say of which sample; ``message-foreign``: it asks for what
            statetap never asks for, or belongs into another queue.
    """
    if len(item) > MOST_BYTES:
        raise RejectError(
            "message-oversized",
            f"a message has {len(item):,} bytes, a job at most {MOST_BYTES:,}",
        )
    try:
        message = FieldReader(_parsed(item.decode(), json.loads), "the message")
        _prove_encoding(message)
        headers = message.take("headers", dict)
        _prove_headers(headers)
        body = message.take("body", str)
        # It is sent on as it is, and Celery encodes it.
        body.encode()
        _prove_job(_parsed(body, kombu.utils.json.loads), queue)
        eta = _eta(headers.get("eta"))
    except ValueError as error:
        raise RejectError("message-unreadable", f"cannot read a message: {error}") from error
    return json.dumps(_message(body, headers, eta, queue)).encode()


def _message(body: str, headers: dict[str, Any], eta: str | None, queue: str) -> dict[str, object]:
    shown = headers.get("argsrepr")
    return {
        "body": body,
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": TASK_NAME,
            "id": headers["id"],
            "retries": headers["retries"],
            "eta": eta,
            "argsrepr": shown[:_MOST_SHOWN_CHARS] if isinstance(shown, str) else "",
            "kwargsrepr": "",
        },
        "properties": {
            "correlation_id": headers["id"],
            "delivery_info": {"exchange": "", "routing_key": queue},
            "body_encoding": "utf-8",
            # Of two messages with one tag, the acknowledgement of either would take both.
            "delivery_tag": uuid.uuid4().hex,
        },
    }


def _parsed(text: str, loads: Callable[[str], Any]) -> Any:
    """Raises ValueError, whatever ``loads`` raises: that of kombu also builds dates and numbers."""
    if (num_brackets := text.count("[") + text.count("{")) > _MOST_BRACKETS:
        raise ValueError(f"it has {num_brackets:,} lists and objects")
    try:
        return loads(text)
    except Exception as error:
        raise ValueError(f"it is no JSON: {error}") from error


def _prove_encoding(message: FieldReader) -> None:
    properties = FieldReader(message.take("properties", dict), "its properties")
    found = (
        message.take("content-type", str),
        message.take("content-encoding", str).lower(),
        properties.take("body_encoding", str).lower(),
    )
    if found != ("application/json", "utf-8", "utf-8"):
        raise ValueError(f"it is encoded as {', '.join(found)}, not as JSON in UTF-8")


def _prove_headers(headers: dict[str, Any]) -> None:
    fields = FieldReader(headers, "its headers")
    if (task := fields.take("task", str)) != TASK_NAME:
        raise RejectError("message-foreign", f"a message is for task {task!r}, not {TASK_NAME}")
    if not _ID.fullmatch(task_id := fields.take("id", str)):
        raise ValueError(f"its id is {task_id!r}")
    if not 0 <= (num_retries := fields.take("retries", int)) <= _MOST_RETRIES:
        raise ValueError(f"it counts {num_retries} retries")
    set_fields = [name for name in _NEVER_SENT if headers.get(name)]
    if headers.get("timelimit") not in (None, [None, None]):
        set_fields.append("timelimit")
    if set_fields:
        raise RejectError(
            "message-foreign", f"a message sets {', '.join(set_fields)}, which statetap never does"
        )


def _prove_job(body: object, queue: str) -> None:
    """What is wrong with the prompt itself is the task's to say, in the ledger of the job's run."""
    match body:
        case [[dict(job)], dict(named), dict(canvas)] if not named:
            pass
        case _:
            raise ValueError("its body is no single job")
    if canvas != _NO_CANVAS:
        raise RejectError("message-foreign", "a message has callbacks, which statetap never sends")
    run, key, spec_digest = job.get("run"), job.get("key"), job.get("spec")
    if not (
        isinstance(run, str)
        and RUN_NAME_FORM.fullmatch(run)
        and isinstance(key, str)
        and KEY_FORM.fullmatch(key)
    ):
        raise ValueError("its job does not name a run and a sample key")
    if not isinstance(spec_digest, str) or queue_name(spec_digest) != queue:
        raise RejectError(
            "message-foreign", f"sample {key} of run {run} was put into {queue}, another's queue"
        )


def _eta(text: object) -> str | None:
    """When a retry is due, None where that is past."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"its eta is {type(text).__name__}")
    due = datetime.fromisoformat(text)
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    now = datetime.now(UTC)
    # No retry waits for longer than a minute: the clock that says so is wrong.
    if due > now + timedelta(seconds=VISIBILITY_TIMEOUT_S):
        return None
    return due.isoformat() if due > now else None
