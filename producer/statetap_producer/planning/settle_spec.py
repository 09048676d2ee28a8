"""Settles the capture spec of a run between a person's wish, the model folder and the server."""

from dataclasses import dataclass

from statetap_contract import CaptureSpec, ModelFolder, ServerCapture, UsageError

from statetap_producer.planning.handshake import ask_server


@dataclass(frozen=True, slots=True)
class SpecWish:
    """What a person asks to be captured."""

    #: Address of a running server, whose own capture spec is taken.
    server: str | None = None
    #: Boundary indices; None for the server's or EAGLE-3's own.
    layers: tuple[int, ...] | None = None
    #: None for the server's or the checkpoint's own.
    dtype: str | None = None
    #: ``post`` or ``pre``; None for the server's, or ``post``.
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is captured, and what is known of where."""

    spec: CaptureSpec
    #: Prompts must stay below it.
    context_length: int
    #: What the server said of itself, None where none was asked.
    capture: ServerCapture | None


def settle_spec(wish: SpecWish, model: ModelFolder) -> Settlement:
    """Agrees on the capture spec.

    Raises:
        UsageError: kind ``model-differs``, ``layers-differ``, ``dtype-differs`` or
            ``norm-differs``: server, model folder and wish do not agree.
        StatetapError: what ``ask_server`` and ``ModelFolder.spec`` raise.
    """
    if wish.server is None:
        spec = model.spec(wish.layers, wish.dtype, wish.norm or "post")
        return Settlement(spec, model.context_length, None)
    capture = ask_server(wish.server)
    spec = capture.spec
    if spec.revision != model.revision:
        raise UsageError(
            "model-differs",
            f"the server at {wish.server} serves {spec.model} of revision {spec.revision}, "
            f"{model.path} is revision {model.revision}; give the folder that the server loaded",
        )
    if wish.layers is not None and tuple(sorted(wish.layers)) != spec.layers:
        raise UsageError(
            "layers-differ",
            f"the server at {wish.server} captures layers {_commas(spec.layers)}, not "
            f"{_commas(wish.layers)}; leave --layers out or restart the server with these",
        )
    if wish.dtype is not None and wish.dtype != spec.dtype:
        raise UsageError(
            "dtype-differs",
            f"the server at {wish.server} computes in {spec.dtype}, not {wish.dtype}; "
            "leave --dtype out or restart the server with it",
        )
    if wish.norm is not None and wish.norm != spec.norm:
        raise UsageError(
            "norm-differs",
            f"the server at {wish.server} takes the last state with norm {spec.norm}, not "
            f"{wish.norm}; leave --norm out or restart the server with it",
        )
    return Settlement(spec, min(model.context_length, capture.context_length), capture)


def _commas(layers: tuple[int, ...]) -> str:
    return ",".join(map(str, layers))
