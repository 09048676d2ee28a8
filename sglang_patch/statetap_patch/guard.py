"""No hook can end the server: what one raises is logged and counted, and SGLang goes on."""

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class Guard:
    """Wraps hooks of the scheduler process, where an exception would end the whole server."""

    def __init__(self) -> None:
        self.num_errors = 0

    def report(self, what: str, error: Exception) -> None:
        """Logs and counts an error that SGLang is not to see."""
        self.num_errors += 1
        logger.error("%s failed; SGLang goes on", what, exc_info=error)

    def beside(self, hook: Callable[..., None]) -> Callable[..., None]:
        """For hooks BEFORE and AFTER their target."""

        @functools.wraps(hook)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                hook(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  whatever it is, the server must live
                self.report(f"the hook {hook.__name__}", error)

        return guarded

    def around(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """For hooks AROUND their target, which runs all the same, and not again if it ran before.

        What the target itself raises is SGLang's own, and passes.
        """

        @functools.wraps(hook)
        def guarded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            call = _Call(original)
            try:
                return hook(call, *args, **kwargs)
            except Exception as error:
                if call.has_raised:
                    raise
                self.report(f"the hook {hook.__name__}", error)
                return call.result if call.has_run else original(*args, **kwargs)

        return guarded


class _Call:
    """A target that remembers what became of its call."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target
        self.has_run = False
        self.has_raised = False
        self.result: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.has_run = True
        try:
            self.result = self._target(*args, **kwargs)
        except BaseException:
            self.has_raised = True
            raise
        return self.result
