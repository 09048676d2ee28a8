"""How producer and worker meet: queue names and the Celery settings both ends must share.

Plain data, no Celery import. Each setting was chosen by killing real workers and brokers; the
reasons are in docs/decisions/0004-celery-settings.md.
"""

import ssl
from typing import Final
from urllib.parse import urlsplit

TASK_NAME: Final = "statetap.extract"

#: Seconds after which a message that was taken and never acknowledged is delivered again. Must
#: exceed the longest task, else a message runs twice while it runs.
VISIBILITY_TIMEOUT_S: Final = 1800


_QUEUE_PREFIX: Final = "statetap."


def queue_name(spec_digest: str) -> str:
    """The queue of one capture spec, so that servers with other models can share one Redis."""
    return f"{_QUEUE_PREFIX}{spec_digest}"


def is_queue_name(name: str) -> bool:
    """Whether a queue is one of prompts, and none of Celery's own."""
    return name.startswith(_QUEUE_PREFIX)


#: Names of the hashes in which workers keep what they took and did not acknowledge, for SCAN.
TAKEN_PATTERN: Final = "unacked.*"


def taken_name(worker: str) -> str:
    """The hash of one worker, so that its successor knows what to give back.

    Args:
        worker: its place and its name there, see ``announcement``.
    """
    return f"unacked.{worker}"


def taken_index_name(taken: str) -> str:
    """A sorted set beside that hash: when each message was taken, in seconds since 1970."""
    return f"index.{taken}"


def alive_name(taken: str) -> str:
    """A key that is there while the worker is at work whose hash has this name."""
    return f"alive.{taken}"


def celery_settings(broker_url: str) -> dict[str, object]:
    """Settings for ``celery.Celery(...).conf.update``."""
    return {
        "broker_url": broker_url,
        "broker_use_ssl": _encryption(broker_url),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 10,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 60,
            "socket_timeout": 15,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            # A body is JSON, base64 would only make it longer.
            "body_encoding": "utf-8",
        },
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_retry_on_worker_lost": True,
        "task_send_sent_event": True,
        "worker_send_task_events": True,
        "worker_prefetch_multiplier": 1,
        "worker_proc_alive_timeout": 60,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
    }


def _encryption(broker_url: str) -> dict[str, object] | None:
    """Whose certificate is asked for; by itself kombu would take any."""
    url = urlsplit(broker_url)
    if url.scheme != "rediss" or "ssl_cert_reqs" in url.query:
        return None
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED}
