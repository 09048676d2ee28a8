"""``statetap-worker``: shakes hands with its server, then works off that server's queue."""

import argparse
import os
import re
import socket
import sys
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

import redis
from statetap_contract import MissingError, StatetapError, UsageError
from statetap_contract.api_key import api_key
from statetap_contract.encryption import encryption_fault

from statetap_worker import log_lines
from statetap_worker.app import WorkerShell
from statetap_worker.asking.server import Server
from statetap_worker.measuring.scrape_point import scrape_point
from statetap_worker.proving.canary import Canary
from statetap_worker.settings import WORKER_NAME_FORM, WORKERS_FOLDER, WorkerSettings
from statetap_worker.worker_name import name_taken

_GIB: Final = 1 << 30

#: Where metrics are served.
_ADDRESS: Final = re.compile(
    r"(?:(?:\[(?P<ip6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):)?(?P<port>[0-9]{1,5})"
)

_EPILOG: Final = """\
It waits for its server, takes prompts of that server's capture spec until it
is told to stop, and tries again or puts back what fails. The first SIGTERM
finishes what the server has, a second one gives it back.

example:
  export STATETAP_REDIS=redis://:PASSWORD@127.0.0.1:6379/0
  statetap-worker --dumps /dev/shm/dumps --runs /data/runs --processes 16

exit codes:
  0  it was told to stop
  2  wrong use
  3  something is missing or broken; the last line says what, or once it works
     the line with level=critical, and docs/faults.md what to do

docs/runbook.md says how to run, watch and stop it."""

#: Seconds to wait for a server that is still loading its model.
_SERVER_WAIT_S: Final = 600.0


def main() -> None:
    """Entry point of the command."""
    try:
        arguments = _parser().parse_args()
        settings = _settings(arguments)
        log_lines.configure(arguments.log_level, settings.name)
        _check_redis(settings.redis_url)
        with (
            name_taken(settings.runs / WORKERS_FOLDER, settings.name),
            scrape_point(settings) as point,
        ):
            server = Server(settings.server_url, api_key=settings.api_key)
            capture = server.wait_until_ready(_SERVER_WAIT_S)
            canary = Canary(settings, capture, f"{settings.name}-parent")
            canary.wait_until_reproduced(server, _SERVER_WAIT_S)
            exit_code = WorkerShell(settings, capture, point).run()
    except StatetapError as error:
        print(f"statetap-worker: {error}", file=sys.stderr)  # noqa: T201  the command's output
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(exit_code)


def _settings(arguments: argparse.Namespace) -> WorkerSettings:
    if not WORKER_NAME_FORM.fullmatch(arguments.name):
        raise UsageError(
            "worker-name",
            f"worker name {arguments.name!r} must match {WORKER_NAME_FORM.pattern}; it becomes "
            "part of file names; give another with --name",
        )
    if arguments.processes < 1:
        raise UsageError("processes", f"{arguments.processes} processes do no work; give 1 or more")
    if arguments.shard_gib <= 0:
        raise UsageError("shard-gib", f"shards of {arguments.shard_gib} GiB hold nothing")
    if not arguments.redis:
        raise UsageError("redis-missing", "no Redis is named; give --redis or set STATETAP_REDIS")
    if not _is_server_url(arguments.server):
        raise UsageError(
            "server-url",
            f"{arguments.server!r} is no server address; write it like http://127.0.0.1:30000",
        )
    for folder in (arguments.dumps, arguments.runs):
        if not folder.is_dir():
            raise MissingError("folder-missing", f"{folder} is not a folder; make it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise MissingError("folder-unwritable", f"{folder} cannot be written to")
    return WorkerSettings(
        server_url=arguments.server.rstrip("/"),
        redis_url=arguments.redis,
        dumps=arguments.dumps.resolve(),
        runs=arguments.runs.resolve(),
        name=arguments.name,
        num_processes=arguments.processes,
        shard_bytes=int(arguments.shard_gib * _GIB),
        metrics_address=_metrics_address(arguments.metrics_port),
        api_key=api_key(),
    )


def _metrics_address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    address = _ADDRESS.fullmatch(text)
    if address is None or not 0 < int(address["port"]) < 1 << 16:
        raise UsageError(
            "metrics-port", f"metrics cannot be served on {text!r}; give a port, or HOST:PORT"
        )
    return (address["ip6"] or address["host"] or "127.0.0.1"), int(address["port"])


def _is_server_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # A worker stands on its server's host, where nothing is encrypted.
        is_plain = parts.scheme == "http" and parts.username is None
        return is_plain and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _check_redis(url: str) -> None:
    """Fails in seconds where Celery would try for ever."""
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=3, socket_timeout=3) as client:
            client.ping()
    except ValueError:
        # The reason may quote the password.
        raise UsageError(
            "redis-url",
            "the Redis URL cannot be read; write redis://:PASSWORD@HOST:PORT/0, with special "
            "characters of the password percent-encoded",
        ) from None
    except redis.AuthenticationError as error:
        raise MissingError(
            "redis-refused", f"Redis refuses the password in --redis: {error}"
        ) from error
    except redis.RedisError as error:
        if fault := encryption_fault(error):
            raise MissingError("redis-untrusted", f"Redis is not used: {fault}") from error
        raise MissingError(
            "redis-unreachable", f"Redis cannot be reached ({error}); start it or mend --redis"
        ) from error


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, in the project's form."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"statetap-worker: {message}; see statetap-worker --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="statetap-worker",
        description="Extract queued prompts through one SGLang server into HDF5 shards.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--server",
        default="http://127.0.0.1:30000",
        metavar="URL",
        help="the SGLang server that it extracts through, on this host (%(default)s); its key, if "
        "it has one, is read from the environment: STATETAP_API_KEY",
    )
    parser.add_argument(
        "--redis",
        # A password on a command line can be read by everyone on the host.
        default=os.environ.get("STATETAP_REDIS"),
        metavar="URL",
        help="the Redis that holds the queue (environment: STATETAP_REDIS)",
    )
    parser.add_argument(
        "--dumps", type=Path, required=True, metavar="DIR", help="the server's folder of dumps"
    )
    parser.add_argument(
        "--runs", type=Path, required=True, metavar="DIR", help="the folder in which runs lie"
    )
    parser.add_argument(
        "--name",
        default=socket.gethostname().split(".")[0][:32],
        help="no other worker of --runs has it, and it stays the same across restarts: shards, "
        "notes and held messages go by it (%(default)s)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=8,
        metavar="N",
        help="prompts in flight, with a child and a shard for each (%(default)s)",
    )
    parser.add_argument(
        "--shard-gib",
        type=float,
        default=16.0,
        metavar="G",
        help="size at which a shard is closed and the next begun (%(default)g)",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="serve metrics for Prometheus there, on 127.0.0.1 unless a host is given",
    )
    parser.add_argument(
        "--log-level",
        choices=log_lines.LEVELS,
        default="warning",
        help="least level of a line in the log; info has one line a sample (%(default)s)",
    )
    return parser
