"""Redis behind TLS: all that statetap sends is encrypted, to nobody but who it knows."""

import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError
from statetap_contract import MissingError, celery_settings, queue_name
from statetap_local.service import Service, free_port
from statetap_local.services import LocalRedis
from statetap_producer.queueing.broker import Broker

from .bench import Bench, assert_stored_once
from .stand_in_server import SPEC, StandInServer
from .tls_relay import Certificate, TlsRelay

QUEUE = queue_name(SPEC.digest)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Of the Redis, which has signed it itself."""
    return make_certificate(tmp_path_factory, "right", "IP:127.0.0.1")


def make_certificate(factory: pytest.TempPathFactory, name: str, host: str) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    return Certificate.make(factory.mktemp("certificates"), name, host)


@pytest.fixture
def relay(local_redis: LocalRedis, certificate: Certificate) -> Iterator[TlsRelay]:
    with local_redis.client() as client:
        client.flushall()
    with TlsRelay(local_redis.port, certificate) as relay:
        yield relay


def address(relay: TlsRelay, local_redis: LocalRedis, *options: str) -> str:
    """Of the encrypted Redis."""
    url = f"rediss://:{local_redis.password}@127.0.0.1:{relay.port}/0"
    return f"{url}?{'&'.join(options)}" if options else url


def trusting(certificate: Certificate) -> str:
    """The option that names a certificate."""
    return f"ssl_ca_certs={certificate.certificate}"


def test_a_run_goes_through_encrypted(
    relay: TlsRelay, local_redis: LocalRedis, certificate: Certificate, tmp_path: Path
) -> None:
    """Celery sends, the worker takes, stores and acknowledges: all of it through the relay."""
    url = address(relay, local_redis, trusting(certificate))
    (tmp_path / "dumps").mkdir()
    with StandInServer(tmp_path / "dumps") as server:
        bench = Bench(tmp_path, local_redis, server, url)
        try:
            jobs = bench.send_jobs([5, 300, 40])
            bench.wait_until(
                lambda: len(bench.stored_keys()) == len(jobs) and bench.num_messages() == 0
            )
        finally:
            bench.worker.stop()
        assert_stored_once(bench, jobs)
    assert relay.num_bytes > 0


def test_the_producer_speaks_encrypted(
    relay: TlsRelay, local_redis: LocalRedis, certificate: Certificate
) -> None:
    """With the file in the address; which shows neither that nor the password."""
    with Broker(address(relay, local_redis, trusting(certificate))) as broker:
        broker.push(QUEUE, [b"one"])
        assert broker.num_waiting(QUEUE) == 1
        assert broker.address == f"127.0.0.1:{relay.port}/0"


def test_the_systems_certificates_may_hold_it(
    relay: TlsRelay, local_redis: LocalRedis, certificate: Certificate, tmp_path: Path
) -> None:
    """``SSL_CERT_FILE`` is OpenSSL's own way to name them."""
    environment = {"SSL_CERT_FILE": str(certificate.certificate)}
    ended = start_worker(address(relay, local_redis), tmp_path, environment)
    # It came as far as the server, of which there is none.
    assert "no SGLang server" in ended


def start_worker(url: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a worker writes that is stopped once it has written something, or has ended."""
    command = [
        str(Path(sys.executable).parent / "statetap-worker"),
        f"--server=http://127.0.0.1:{free_port()}",
        *(f"--dumps={folder}", f"--runs={folder}"),
    ]
    log = folder / "worker.log"
    service = Service("worker", command, log, {"STATETAP_REDIS": url} | (environment or {}))
    try:
        service.wait_until(lambda: log.stat().st_size > 0, 30)
    except MissingError:
        assert log.stat().st_size
    service.stop()
    return log.read_text().replace("why=", "")


@pytest.fixture(
    params=["nobody is trusted", "somebody else is trusted", "the certificate of another host"]
)
def distrusted(
    request: pytest.FixtureRequest,
    local_redis: LocalRedis,
    certificate: Certificate,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[TlsRelay, str]]:
    """A relay and an address under which it must not be believed."""
    shown, options = certificate, list[str]()
    if request.param == "somebody else is trusted":
        other = make_certificate(tmp_path_factory, "other", "IP:127.0.0.1")
        options.append(trusting(other))
    elif request.param == "the certificate of another host":
        shown = make_certificate(tmp_path_factory, "elsewhere", "DNS:redis.elsewhere")
        options.append(trusting(shown))
    with TlsRelay(local_redis.port, shown) as relay:
        yield relay, address(relay, local_redis, *options)
        # Not even the password was sent.
        assert relay.num_bytes == 0


def test_a_wrong_certificate_is_refused(
    distrusted: tuple[TlsRelay, str], local_redis: LocalRedis, tmp_path: Path
) -> None:
    """By worker, producer and Celery; the first two say so in a sentence, without the password."""
    relay, url = distrusted
    with pytest.raises(MissingError, match="certificate is not accepted") as caught:
        Broker(url)
    assert caught.value.kind == "redis-untrusted"
    assert f"127.0.0.1:{relay.port}" in caught.value.message
    told = start_worker(url, tmp_path)
    assert told.startswith("statetap-worker: Redis is not used: its certificate is not accepted")
    assert told.count("\n") == 1
    assert local_redis.password not in told + caught.value.message
    with Celery("test") as app:
        app.conf.update(celery_settings(url))
        with (
            app.connection_for_write() as connection,
            pytest.raises((OperationalError, redis.ConnectionError), match="CERTIFICATE_VERIFY"),
        ):
            connection.ensure_connection(max_retries=1, interval_start=0)


def test_what_speaks_no_tls_is_told_apart(tmp_path: Path) -> None:
    """Where something answers at all; a plain Redis waits for more, and time runs out."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"-ERR this is no TLS\r\n")
                    connection.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"rediss://:secret@127.0.0.1:{listener.getsockname()[1]}/0"
        with pytest.raises(MissingError, match="write redis:// where Redis has none") as caught:
            Broker(url)
        assert caught.value.kind == "redis-untrusted"
        assert "write redis:// where Redis has none" in start_worker(url, tmp_path)
        thread.join(10)


def test_a_file_of_certificates_that_is_not_there(
    relay: TlsRelay, local_redis: LocalRedis, tmp_path: Path
) -> None:
    """Which redis-py tells like a Redis that cannot be found."""
    url = address(relay, local_redis, f"ssl_ca_certs={tmp_path}/none.pem")
    with pytest.raises(MissingError, match="file of certificates") as caught:
        Broker(url)
    assert caught.value.kind == "redis-untrusted"


def test_flower_watches_encrypted(
    relay: TlsRelay, local_redis: LocalRedis, certificate: Certificate, tmp_path: Path
) -> None:
    """As docs/security.md starts it: its two ways to Redis want the file twice."""
    url = address(relay, local_redis, "ssl_cert_reqs=required", trusting(certificate))
    port = free_port()
    command = [str(Path(sys.executable).parent / "celery"), "flower", "--address=127.0.0.1"]
    flower = Service(
        "Flower",
        [*command, f"--port={port}"],
        tmp_path / "flower.log",
        {
            "CELERY_BROKER_URL": url,
            "FLOWER_BASIC_AUTH": "me:secret",
            "SSL_CERT_FILE": str(certificate.certificate),
        },
    )
    page = f"http://127.0.0.1:{port}"
    try:
        flower.wait_until(lambda: is_up(page), 60)
        assert httpx.get(f"{page}/api/workers", timeout=10).status_code == 401
        answer = httpx.get(f"{page}/broker", auth=("me", "secret"), timeout=30)
        assert answer.status_code == 200
        assert local_redis.password not in answer.text
    finally:
        flower.stop()
    assert "insecure" not in (tmp_path / "flower.log").read_text()
    assert relay.num_bytes > 0


def is_up(page: str) -> bool:
    try:
        return httpx.get(f"{page}/healthcheck", timeout=5).is_success
    except httpx.TransportError:
        return False
