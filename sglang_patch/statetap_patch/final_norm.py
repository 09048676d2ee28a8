"""The state before the final norm, which no output of SGLang's models carries."""

from typing import Any, Final

from statetap_patch.layers import capturing_module

#: Set on models that fuse the last reduction with the norm: the norm module is not called then.
_FUSED: Final = ("finalize_norm", "flashinfer_mnnvl_cutedsl_fusion")


class FinalNormInput:
    """Keeps what the final norm was given in the current forward pass.

    A hook of torch on the norm module. It sees eager passes only: a replayed CUDA graph runs no
    Python, which is why the launcher turns graphs for prefill off when this state is asked for.
    """

    def __init__(self, model: Any) -> None:
        """Attaches to a loaded SGLang model.

        Raises:
            ValueError: the module that captures aux layers has no ``norm``, or passes it by.
        """
        decoder = capturing_module(model)
        if any(getattr(decoder, name, None) is not None for name in _FUSED):
            raise ValueError(f"{type(model).__name__} fuses its final norm with what is before it")
        norm = getattr(decoder, "norm", None)
        if norm is None:
            raise ValueError(f"{type(model).__name__} has no final norm to look before")
        self._state: Any = None
        norm.register_forward_hook(self._keep)

    def take(self) -> Any:
        """The states [rows of the batch, hidden] of the pass that just ended.

        None when the norm was not called in it: what an earlier pass left is never handed out.
        """
        state, self._state = self._state, None
        return state

    def _keep(self, _norm: Any, inputs: tuple[Any, ...], output: Any) -> None:
        # With a residual stream the norm adds it first, and returns the sum beside its result.
        # Nothing here may raise: it would end the forward pass. None fails the captures of it.
        if isinstance(output, tuple):
            self._state = output[1]
        else:
            self._state = inputs[0] if inputs else None
