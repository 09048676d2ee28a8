"""Every failure statetap knows, grouped by what the one who catches it will do.

StatetapError
|-- UsageError           a person asked for something that cannot be         (exit code 2)
|-- MissingError         something needed is not there                       (exit code 3)
|-- CheckError           a check was made and failed                         (exit code 1)
|-- RetryError           try this sample again
|   |-- TransientError   the world was in the way: server down, disk busy
|   `-- MismatchError    what came back does not belong to the prompt
|-- RejectError          this sample will never work: dead letter
`-- StopError            this worker cannot go on: put the job back and stop
"""


class StatetapError(Exception):
    """A failure with a stable ``kind`` (kebab case, for programs) and one sentence (for people).

    The fields are positional so that the exception survives pickling.
    """

    exit_code = 1

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


class UsageError(StatetapError):
    """The request itself is wrong; the sentence says what would be right."""

    exit_code = 2


class MissingError(StatetapError):
    """A file, a service or room on a disk is missing; the sentence says how to get it."""

    exit_code = 3


class CheckError(StatetapError):
    """A check ran to its end and its verdict is bad."""

    exit_code = 1


class RetryError(StatetapError):
    """The sample may work when tried again."""


class TransientError(RetryError):
    """Nothing is known to be wrong with the sample: the server, the network or a disk failed.

    ``retry_after_s`` is what the server asked for, None where it did not.
    """

    def __init__(self, kind: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(kind, message)
        self.args = (kind, message, retry_after_s)
        self.retry_after_s = retry_after_s


class MismatchError(RetryError):
    """The dump disagrees with the prompt, the receipt or the capture spec."""


class RejectError(StatetapError):
    """No retry can help: the sample becomes a dead letter."""


class StopError(StatetapError):
    """The worker process must not touch another sample."""

    exit_code = 3
