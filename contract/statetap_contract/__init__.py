"""What crosses a process boundary: spec, job, request, receipt, dump layout, handshake, errors.

Standard library only, because it is installed beside everything, the SGLang server included.
"""

from statetap_contract.dead_letter import DeadLetter
from statetap_contract.dump import (
    HEADER_BYTES,
    DumpLayout,
    decode_header,
    dump_name,
    encode_header,
    layout_of,
)
from statetap_contract.errors import (
    CheckError,
    MismatchError,
    MissingError,
    RejectError,
    RetryError,
    StatetapError,
    StopError,
    TransientError,
    UsageError,
)
from statetap_contract.failed_try import FailedTry
from statetap_contract.handshake import ServerCapture, agreed_capture
from statetap_contract.job import RUN_NAME_FORM, Job
from statetap_contract.model_folder import ModelFolder
from statetap_contract.prompt import KEY_FORM, Prompt, sample_key
from statetap_contract.receipt import Receipt
from statetap_contract.request import FIELD, CaptureRequest
from statetap_contract.spec import DTYPE_BYTES, CaptureSpec
from statetap_contract.strict_json import record_of
from statetap_contract.transport import TASK_NAME, celery_settings, queue_name

__all__ = [
    "DTYPE_BYTES",
    "FIELD",
    "HEADER_BYTES",
    "KEY_FORM",
    "RUN_NAME_FORM",
    "TASK_NAME",
    "CaptureRequest",
    "CaptureSpec",
    "CheckError",
    "DeadLetter",
    "DumpLayout",
    "FailedTry",
    "Job",
    "MismatchError",
    "MissingError",
    "ModelFolder",
    "Prompt",
    "Receipt",
    "RejectError",
    "RetryError",
    "ServerCapture",
    "StatetapError",
    "StopError",
    "TransientError",
    "UsageError",
    "agreed_capture",
    "celery_settings",
    "decode_header",
    "dump_name",
    "encode_header",
    "layout_of",
    "queue_name",
    "record_of",
    "sample_key",
]
