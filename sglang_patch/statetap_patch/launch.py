"""``statetap-sglang``: checks what can be checked, then becomes a patched SGLang server."""

import argparse
import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import Final, NoReturn

from statetap_contract import MissingError, ModelFolder, StatetapError, UsageError
from statetap_contract.api_key import API_KEY_VARIABLE, api_key

from statetap_patch.cpu import PLATFORM_NAME
from statetap_patch.dump_folder import check_dump_folder, claim
from statetap_patch.layers import raw_layer_ids
from statetap_patch.settings import PatchSettings

#: Tokens that the key-value pool of a CPU server holds, at least. SGLang would take half of the
#: memory, and its allocator copies the list of free slots for each captured request that ends: with
#: a small model that was a fifth of the scheduler's time.
_POOL_TOKENS: Final = 32_768

#: Arguments that the launcher sets itself, or that would change states without changing the spec.
_OWNED: Final = (
    "--config",
    "--model-path",
    "--model",
    "--revision",
    "--load-format",
    "--quantization",
    "--quantization-param-path",
    "--quantize-and-serve",
    "--modelopt-quant",
    "--kv-cache-dtype",
    "--rl-quant-profile",
    "--rl-on-policy-target",
    "--enable-hisparse",
    "--custom-weight-loader",
    "--decrypted-config-file",
    "--json-model-override-args",
    "--dtype",
    "--host",
    "--port",
    "--device",
    "--served-model-name",
    "--enable-return-aux-hidden-states",
    "--return-aux-hidden-state-layer-ids",
    "--speculative-algorithm",
)

#: Given by the environment.
_API_KEY: Final = "--api-key"


def main() -> None:
    """Entry point of the command."""
    arguments, sglang_arguments = _parser().parse_known_args()
    try:
        command, environment = prepare(arguments, sglang_arguments)
    except StatetapError as error:
        print(f"statetap-sglang: {error}", file=sys.stderr)  # noqa: T201  the command's output
        sys.exit(error.exit_code)
    os.execve(sys.executable, command, environment)  # noqa: S606  the pid stays, signals reach SGLang


def prepare(
    arguments: argparse.Namespace, sglang_arguments: list[str]
) -> tuple[list[str], dict[str, str]]:
    """The command line and environment of the server.

    Raises:
        UsageError: layers, dtype, arguments or an API key that cannot work.
        MissingError: no SGLang, no model, a dump folder that cannot be used, or a port that
            is taken.
    """
    for argument in sglang_arguments:
        name = argument.split("=")[0]
        # SGLang takes abbreviations.
        if name.startswith("--") and _API_KEY.startswith(name):
            raise UsageError(
                "api-key",
                f"{name} would show the key to everyone on this host; put it into "
                f"{API_KEY_VARIABLE} instead",
            )
        if name.startswith("--") and any(owned.startswith(name) for owned in _OWNED):
            raise UsageError(
                "argument-owned",
                f"{argument} is set by statetap-sglang, or would change states without changing "
                "their capture spec; leave it out",
            )
    api_key()  # which the server reads itself, and would end for much later
    model = ModelFolder.read(arguments.model)
    layers = tuple(arguments.layers) if arguments.layers else None
    spec = model.spec(layers, arguments.dtype, arguments.norm)
    raw_ids = raw_layer_ids(model.architecture, spec.layers, model.num_layers)
    dumps = check_dump_folder(arguments.dumps, spec.row_bytes * model.context_length)
    _check_port(arguments.host, arguments.port)
    if importlib.util.find_spec("sglang") is None:
        raise MissingError(
            "sglang-missing",
            f"sglang is not installed beside {sys.executable}; use the statetap-sglang of the "
            "environment that has it, .venv-server after make install",
        )
    claim(dumps)
    settings = PatchSettings(
        dumps, spec, raw_ids, arguments.keep, is_any_version=arguments.any_sglang_version
    )
    command = [
        sys.executable,
        "-m",
        "statetap_patch.serve",
        f"--model-path={model.path}",
        f"--served-model-name={model.name}",
        f"--dtype={spec.dtype}",
        f"--host={arguments.host}",
        f"--port={arguments.port}",
        "--enable-return-aux-hidden-states",
        "--speculative-algorithm=EAGLE3",
        "--return-aux-hidden-state-layer-ids",
        *map(str, settings.raw_layer_ids),
        # Waiting prompts go before the second token of a warm-up's answer: beside a busy worker it
        # would not end, the server not be ready, and SGLang end itself after ten minutes of that.
        # The worker's canary prompt warms it up.
        "--skip-server-warmup",
    ]
    if spec.norm == "pre":
        # This state is seen by Python code, which a replayed graph does not run.
        command.append("--disable-prefill-cuda-graph")
    environment = dict(os.environ) | settings.to_environment()
    if arguments.cpu:
        command += [
            "--device=cpu",
            "--attention-backend=torch_native",
            "--sleep-on-idle",
            "--mem-fraction-static=0.5",
            f"--max-total-tokens={max(_POOL_TOKENS, model.context_length)}",
        ]
        environment["SGLANG_PLATFORM"] = PLATFORM_NAME
        environment.pop("SGLANG_USE_CPU_ENGINE", None)
    return command + sglang_arguments, environment


def _check_port(host: str, port: int) -> None:
    if not 0 < port < 1 << 16:
        raise UsageError("port-impossible", f"port {port} does not exist; choose one up to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except socket.gaierror as error:
        raise UsageError(
            "host-unknown", f"{host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0"
        ) from error
    with socket.socket(family) as probe:
        # As the server itself does: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise MissingError(
                "port-taken", f"cannot listen on {host}:{port} ({error.strerror}); choose another"
            ) from error


def _seconds(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; give 1 or more")
    return int(text)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, in the project's form."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"statetap-sglang: {message}; see statetap-sglang --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="statetap-sglang",
        description="Serve a model with SGLang and dump the hidden states of the prompts that "
        "ask for it. Arguments not listed here are passed on to SGLang. The API key that it wants "
        f"of its clients, if any, is read from the environment: {API_KEY_VARIABLE}.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="model folder")
    parser.add_argument(
        "--dumps",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for dumps, shared with the workers; best on shared memory",
    )
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        metavar="K",
        help="aux layers as boundary indices, hidden_states[K] of HF transformers "
        "(default: EAGLE-3's three)",
    )
    parser.add_argument(
        "--dtype", metavar="D", help="bfloat16, float16 or float32 (default: the checkpoint's)"
    )
    parser.add_argument(
        "--norm",
        choices=("post", "pre"),
        default="post",
        help="last hidden state after the final norm, or before it (default: %(default)s)",
    )
    parser.add_argument(
        "--keep",
        type=_seconds,
        default=1800,
        metavar="S",
        help="seconds until a dump that nobody fetched is removed (default: %(default)s)",
    )
    parser.add_argument(
        "--any-sglang-version",
        action="store_true",
        help="start beside an SGLang that this patch was never tested with",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=30000, help="port (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="serve on a plain CPU, without CUDA")
    return parser
