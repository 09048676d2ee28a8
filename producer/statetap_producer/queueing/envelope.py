"""The message around a job, as Celery's Redis transport keeps it in the queue's list.

Sending through Celery takes two to three times as long. The form is Celery's message protocol 2 in
kombu's frame, and a test holds it against the message that Celery itself sends.
"""

import json
import os
import socket
import uuid
from itertools import count
from typing import Final

from statetap_contract import TASK_NAME, Job, queue_name

#: What Celery sends beside the arguments: no callbacks, no chain.
_NO_NAMED_ARGUMENTS: Final[dict[str, object]] = {}
_NO_CANVAS: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

#: Marks in the form of a message. No host name holds such a thing.
_BODY: Final = "<body>"
_KEY: Final = "<key>"
_SHOWN: Final = "<shown>"
_TAG: Final = "<tag>"


class Envelope:
    """Wraps jobs for the queue of one capture spec."""

    def __init__(self, spec_digest: str) -> None:
        origin = f"statetap-{os.getpid()}@{socket.gethostname()}"
        self._form = json.dumps(_form(queue_name(spec_digest), origin))
        # Names a message while a worker holds it: of two messages of one prompt, each has its own.
        self._tags = map(f"{uuid.uuid4().hex}-{{}}".format, count())

    def wrap(self, job: Job) -> bytes:
        """The message: ASCII, so that it is the same in every encoding."""
        body = json.dumps([[job.to_message()], _NO_NAMED_ARGUMENTS, _NO_CANVAS])
        # Nothing that is filled in holds anything but quotes that JSON would escape.
        message = (
            self._form.replace(_KEY, job.key)
            .replace(_SHOWN, str(job))
            .replace(_TAG, next(self._tags))
            .replace(_BODY, body.replace('"', '\\"'))
        )
        return message.encode()


def _form(queue: str, origin: str) -> dict[str, object]:
    """A message with marks where jobs differ."""
    return {
        "body": _BODY,
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": TASK_NAME,
            "id": _KEY,
            "shadow": None,
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": _KEY,
            "parent_id": None,
            "argsrepr": _SHOWN,
            "kwargsrepr": "",
            "origin": origin,
            "ignore_result": True,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        "properties": {
            "correlation_id": _KEY,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "utf-8",
            "delivery_tag": _TAG,
        },
    }
