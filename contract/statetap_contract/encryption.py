"""What a failed connection to an encrypted Redis means to a person."""

import ssl
from collections.abc import Iterator


def encryption_fault(error: BaseException) -> str | None:
    """What is wrong with the encryption, and what to do; None where that is not what failed.

    Args:
        error: as a client of Redis raised it, with what led to it behind it.
    """
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not accepted ({cause.verify_message}); name the file of who "
                "signed it, rediss://:PASSWORD@HOST:PORT/0?ssl_ca_certs=FILE, and the host as the "
                "certificate does"
            )
        if isinstance(cause, ssl.SSLError):
            return (
                f"it cannot be agreed on an encryption ({cause.reason}); write redis:// where "
                "Redis has none"
            )
        if isinstance(cause, FileNotFoundError):  # of connecting by TCP this is no error
            return "a file of certificates named in its address is not there; correct the address"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and one by one what it was raised from or because of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
