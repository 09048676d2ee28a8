"""Every seam into SGLang, in one table; registers them and proves that they hold.

Source: sglang 0.5.23. When SGLang is upgraded, this table is what has to be read again.
"""

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from statetap_patch.guard import Guard
from statetap_patch.scheduler_side import SchedulerSide
from statetap_patch.tokenizer_side import TokenizerSide

_MANAGERS = "sglang.srt.managers"
_SCHEDULER = f"{_MANAGERS}.scheduler.Scheduler"
_TOKENIZER = f"{_MANAGERS}.tokenizer_manager.TokenizerManager"
_STREAMER = f"{_MANAGERS}.scheduler_components.output_streamer.SchedulerOutputStreamer"


@dataclass(frozen=True, slots=True)
class Hook:
    """One seam: ``function`` runs BEFORE, AFTER or AROUND the target."""

    target: str
    kind: str
    function: Callable[..., Any]


def hook_table(
    scheduler: SchedulerSide, tokenizer: TokenizerSide, guard: Guard
) -> tuple[Hook, ...]:
    """All hooks, bound to the two sides' state.

    Those that run once, at start, may end the server; so may a hook of the tokenizer process end
    its request. ``before_process_input`` guards its own part and calls SGLang, whose errors are not
    the patch's to swallow. All others are guarded.
    """

    def prove(*_: Any, **__: Any) -> None:
        prove_applied(table)

    table = (
        Hook(f"{_SCHEDULER}.__init__", "BEFORE", prove),
        Hook(f"{_SCHEDULER}.__init__", "AFTER", scheduler.after_scheduler_init),
        Hook(
            f"{_SCHEDULER}.process_input_requests",
            "BEFORE",
            scheduler.before_process_input,
        ),
        Hook(
            f"{_SCHEDULER}.maybe_sleep_on_idle",
            "AROUND",
            guard.around(scheduler.around_sleep_on_idle),
        ),
        Hook(
            f"{_SCHEDULER}.send_abort_output", "BEFORE", guard.beside(scheduler.before_abort_output)
        ),
        Hook(
            f"{_SCHEDULER}.get_internal_state",
            "AFTER",
            guard.beside(scheduler.after_internal_state),
        ),
        Hook(
            f"{_MANAGERS}.schedule_batch.Req.__init__",
            "AFTER",
            guard.beside(scheduler.after_request_init),
        ),
        Hook(
            f"{_MANAGERS}.tp_worker.TpModelWorker.forward_batch_generation",
            "AFTER",
            guard.beside(scheduler.after_forward),
        ),
        Hook(f"{_STREAMER}.stream_output", "AROUND", guard.around(scheduler.around_stream_output)),
        Hook(
            f"{_STREAMER}.is_request_level_customized_info_key",
            "AROUND",
            guard.around(scheduler.around_is_request_level),
        ),
        Hook(f"{_TOKENIZER}.__init__", "BEFORE", prove),
        Hook(f"{_TOKENIZER}.__init__", "AFTER", tokenizer.after_init),
        Hook(f"{_TOKENIZER}.generate_request", "AROUND", tokenizer.around_generate_request),
        *(
            Hook(
                f"{_TOKENIZER}.update_weights_from_{source}",
                "AROUND",
                tokenizer.around_update_weights,
            )
            for source in ("disk", "distributed", "tensor", "ipc")
        ),
        Hook(f"{_TOKENIZER}.check_weights", "AROUND", tokenizer.around_check_weights),
    )
    return table


def register_hooks(table: tuple[Hook, ...]) -> None:
    """Hands the table to SGLang's plugin framework.

    The framework only logs a target that is missing and an exception of a plugin, so that a server
    would start and serve uncaptured; SystemExit passes.

    Raises:
        SystemExit: a target does not exist in this SGLang.
    """
    from sglang.srt.plugins.hook_registry import (  # noqa: PLC0415  only inside a server
        HookRegistry,
        HookType,
    )

    for hook in table:
        try:
            pkgutil.resolve_name(hook.target)
        except (ImportError, AttributeError) as error:
            raise SystemExit(
                f"statetap: this SGLang has no {hook.target} ({error}); use the version that "
                "the patch was written for."
            ) from error
        HookRegistry.register(hook.target, hook.function, HookType[hook.kind])


def prove_applied(table: tuple[Hook, ...]) -> None:
    """Proves that each hook sits in its target's chain of wrappers.

    Another plugin that applies hooks early makes later hooks on the same target vanish without a
    word; this is where it shows.

    Raises:
        SystemExit: a hook is not in place.
    """
    for hook in table:
        if not any(hook.function == found for found in _wrapped(hook)):
            raise SystemExit(
                f"statetap: the hook on {hook.target} was not applied; remove the plugin that "
                "interferes."
            )


def _wrapped(hook: Hook) -> Iterator[Any]:
    """What the wrappers around a target hold on to."""
    function = pkgutil.resolve_name(hook.target)
    while function is not None:
        for cell in getattr(function, "__closure__", None) or ():
            yield cell.cell_contents
        function = getattr(function, "__wrapped__", None)
