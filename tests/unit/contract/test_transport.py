"""What both ends of the queue agree on."""

import ssl
from pathlib import Path

import pytest
import redis
from celery import Celery
from statetap_contract import celery_settings, queue_name
from statetap_contract.transport import is_queue_name


@pytest.mark.parametrize(
    ("url", "encryption"),
    [
        ("redis://127.0.0.1:1/0", None),
        ("rediss://redis.example:1/0", {"ssl_cert_reqs": ssl.CERT_REQUIRED}),
    ],
)
def test_an_encrypted_redis_is_verified(url: str, encryption: object) -> None:
    """Unless the address says otherwise, it has to show a certificate that is trusted."""
    with Celery("test") as app:
        app.conf.update(celery_settings(url))
        assert (app.connection_for_read().ssl or None) == encryption


def test_the_address_may_ask_for_less() -> None:
    """It is left alone then."""
    assert celery_settings("rediss://r:1/0?ssl_cert_reqs=none")["broker_use_ssl"] is None


def test_certificates_named_in_the_address_are_those_that_count(tmp_path: Path) -> None:
    """Kombu takes the address's options in place of the settings'; it verifies all the same."""
    with Celery("test") as app:
        app.conf.update(celery_settings(f"rediss://r:1/0?ssl_ca_certs={tmp_path}"))
        options = app.connection_for_read().ssl
    assert options["ssl_ca_certs"] == str(tmp_path)
    # Of redis-py, which is given them: without a word it asks for a certificate.
    connection = redis.SSLConnection(**options)
    assert connection.cert_reqs == ssl.CERT_REQUIRED
    assert connection.check_hostname


def test_queues_of_prompts_are_known_by_their_names() -> None:
    """Celery has others in the same Redis."""
    assert is_queue_name(queue_name("ab" * 16))
    assert not is_queue_name("celery")
    assert not is_queue_name("w@host.celery.pidbox")
