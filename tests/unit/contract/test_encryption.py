"""Which failures of a connection are those of its encryption."""

import ssl

import pytest
from statetap_contract.encryption import encryption_fault


def raised(*chain: Exception) -> Exception:
    """The last error, raised while the one before it was handled, and so on."""
    first, *others = chain
    for error in others:
        error.__context__ = first
        first = error
    return first


def distrust(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = message
    return error


def test_a_certificate_is_named_however_deep() -> None:
    """redis-py raises an error of its own for it, and retries another one."""
    error = raised(distrust("self-signed certificate"), ConnectionError("1"), RuntimeError("2"))
    sentence = encryption_fault(error)
    assert sentence is not None
    assert "self-signed certificate" in sentence
    assert "ssl_ca_certs" in sentence


def no_tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL] wrong")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("cause", "part"),
    [
        (no_tls("WRONG_VERSION_NUMBER"), "WRONG_VERSION_NUMBER"),
        (FileNotFoundError(2, "No such file"), "file"),
    ],
)
def test_other_faults_of_encryption_are_told_apart(cause: Exception, part: str) -> None:
    """A Redis without encryption, and a file that is not there."""
    sentence = encryption_fault(raised(cause, ConnectionError("x")))
    assert sentence is not None
    assert part in sentence
    assert "certificate is not accepted" not in sentence


def test_other_failures_are_none() -> None:
    """Refused, timed out, closed."""
    assert encryption_fault(raised(ConnectionRefusedError(111, "refused"), OSError("x"))) is None
    assert encryption_fault(TimeoutError()) is None
