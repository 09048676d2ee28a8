"""NormStep: what becomes of last hidden states on the way to a trainer."""

from dataclasses import dataclass, replace
from typing import Final, Self

import torch
from statetap_contract import CaptureSpec, CheckError, ModelFolder, UsageError
from statetap_store.torch_view import to_torch

from statetap_producer.exporting.model_norm import ModelNorm
from statetap_producer.exporting.trainer_format import Blocks

#: The middle row of a sample may not have lost more to eps: no model's states are that small, and
#: weights that are too large look the same.
_LARGEST_SHORTFALL: Final = 2.0**-5

#: In words, by what ``CaptureSpec.norm`` says.
NORM_WORDS: Final = {"post": "after the final norm", "pre": "before the final norm"}


@dataclass(frozen=True, slots=True, eq=False)
class NormStep:
    """Turns last hidden states into those that a trainer reads."""

    #: ``post`` or ``pre``: how they were captured and how they are written.
    captured: str
    written: str
    #: None where these are the same.
    norm: ModelNorm | None

    @classmethod
    def settle(
        cls, trainer: str, norms: tuple[str, ...], spec: CaptureSpec, model: ModelFolder | None
    ) -> Self:
        """What a trainer that reads ``norms`` needs.

        Raises:
            UsageError: kind ``model-needed``: there is no model to convert with; ``norm-unknown``.
            MissingError: as ``ModelNorm.read``.
        """
        if spec.norm in norms:
            return cls(spec.norm, spec.norm, None)
        (wanted,) = norms
        if model is None:
            raise UsageError(
                "model-needed",
                f"{trainer} reads last hidden states {NORM_WORDS[wanted]} and these are stored "
                f"{NORM_WORDS[spec.norm]}: give the model's folder with --model to convert them",
            )
        return cls(spec.norm, wanted, ModelNorm.read(model))

    def taken(self, key: str, blocks: Blocks, spec: CaptureSpec) -> Blocks:
        """A sample's rows with the other last hidden states, in the same memory.

        They are computed in float32 and rounded once.

        Args:
            key: the sample's.
            blocks: its rows.
            spec: what they hold.

        Raises:
            CheckError: kind ``norm-differs``: they are not what the model's norm gives, or are
                beyond what the dtype holds; ``not-finite``; and what ``blocks`` raises.
        """
        if self.norm is None:
            yield from blocks
            return
        shortfalls = []
        for rows in blocks:
            last = to_torch(rows, spec.dtype)[:, -spec.hidden_size :]
            if self.written == "post":
                last.copy_(self.norm.apply(_finite(key, last.float())))
                if not last.isfinite().all():
                    raise _differs(key, f"the result is beyond {spec.dtype}")
            else:
                try:
                    states, shortfall = self.norm.undo(last.float())
                except ValueError as error:
                    raise _differs(key, str(error)) from error
                if not shortfall.isfinite().all():
                    _finite(key, last)
                    raise _differs(key, "a mean square is beyond float32")
                last.copy_(states)
                shortfalls.append(shortfall)
            yield rows
        # One row may be small by right, half of them are not.
        if shortfalls and not self.norm.has_zeros:
            middle = float(torch.cat(shortfalls).median())
            if middle > _LARGEST_SHORTFALL:
                raise _differs(key, f"a mean square is {1 - middle:.3g}, below 1")

    def written_spec(self, spec: CaptureSpec) -> CaptureSpec:
        """What the rows hold afterwards."""
        return replace(spec, norm=self.written)


def _differs(key: str, why: str) -> CheckError:
    return CheckError(
        "norm-differs",
        f"the last hidden states of sample {key} do not fit the model's final norm ({why}): give "
        "the very model folder that the server loaded",
    )


def _finite(key: str, last: torch.Tensor) -> torch.Tensor:
    """The same rows. Raises CheckError, kind ``not-finite``."""
    if not last.isfinite().all():
        raise CheckError(
            "not-finite",
            f"the last hidden states of sample {key} hold a value that is not finite: run "
            "statetap verify, then repair, and extract the sample again",
        )
    return last
