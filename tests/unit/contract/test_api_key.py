"""Where the server's key comes from, and how it is shown."""

import pytest
from statetap_contract import UsageError
from statetap_contract.api_key import api_key, authorization, wants_key


@pytest.mark.parametrize("environment", [{}, {"STATETAP_API_KEY": ""}])
def test_without_a_key_nothing_is_sent(environment: dict[str, str]) -> None:
    """Compose hands a variable that nobody set over as an empty one."""
    assert api_key(environment) is None
    assert authorization(api_key(environment)) == {}


def test_a_key_is_sent_as_sglang_wants_it() -> None:
    """The scheme of RFC 6750."""
    key = api_key({"STATETAP_API_KEY": "s3cret-key"})
    assert authorization(key) == {"Authorization": "Bearer s3cret-key"}


@pytest.mark.parametrize(
    "key", ["two words", "line\r\nX: y", "line\n", "ключ", "\x7f", "tab\t", "="]
)
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    """It could end the header and begin another one; the sentence does not show it."""
    with pytest.raises(UsageError, match="STATETAP_API_KEY") as caught:
        api_key({"STATETAP_API_KEY": key})
    assert caught.value.kind == "api-key"
    assert key not in caught.value.message


@pytest.mark.parametrize("key", ["it's", 'a"b', "back\\slash", "<b>", "a%20b"])
def test_a_key_that_could_be_written_otherwise_is_refused(key: str) -> None:
    """Escaped, as in a ``repr``, it would not be found in a log to be blotted out."""
    with pytest.raises(UsageError, match="STATETAP_API_KEY"):
        api_key({"STATETAP_API_KEY": key})


@pytest.mark.parametrize("key", ["0123456789abcdef", "Ab+/cd==", "a.b_c~d-e"])
def test_what_makes_keys_makes_good_ones(key: str) -> None:
    """As of ``openssl rand``, in hex or base64, or of a token service."""
    assert api_key({"STATETAP_API_KEY": key}) == key


def test_a_refusal_is_known_by_its_status() -> None:
    """No other status says anything about the key."""
    assert [status for status in range(100, 600) if wants_key(status)] == [401, 403]
