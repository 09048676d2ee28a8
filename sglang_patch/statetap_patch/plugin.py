"""The entry point that SGLang calls in its main process and in every scheduler process."""

from typing import Final

from statetap_patch.guard import Guard
from statetap_patch.hooks import hook_table, register_hooks
from statetap_patch.scheduler_side import SchedulerSide
from statetap_patch.settings import PatchSettings
from statetap_patch.tokenizer_side import TokenizerSide

#: Versions the hooks were written for and tested with.
SUPPORTED_SGLANG: Final = ("0.5.23",)


def register() -> None:
    """Registers the hooks; does nothing in a server that ``statetap-sglang`` did not start.

    Raises:
        SystemExit: the only exception of a plugin that stops SGLang from starting.
    """
    try:
        settings = PatchSettings.from_environment()
    except ValueError as error:
        raise SystemExit(f"statetap: {error}; start the server with statetap-sglang.") from error
    if settings is None:
        return
    # There is no SGLang where the plugin's own tests run.
    import sglang  # noqa: PLC0415

    if sglang.__version__ not in SUPPORTED_SGLANG and not settings.is_any_version:
        raise SystemExit(
            f"statetap: SGLang {sglang.__version__} was never tested with this patch; install "
            f"sglang=={SUPPORTED_SGLANG[-1]}, or start with --any-sglang-version at your own risk."
        )
    guard = Guard()
    sides = SchedulerSide(settings, guard), TokenizerSide(settings)
    register_hooks(hook_table(*sides, guard))
