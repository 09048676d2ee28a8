"""Which prompts are taken: what a person chose for those that are too long or teach nothing."""

from dataclasses import dataclass
from typing import Self

from statetap_contract.strict_json import read_record


@dataclass(frozen=True, slots=True)
class PromptRules:
    """Part of a plan's identity: other rules, another plan."""

    #: Longest prompt.
    max_tokens: int
    #: Whether longer ones are cut to their beginning instead of left out.
    is_cut: bool = False
    #: Whether prompts without any loss, and with loss on every token, are planned.
    allows_empty_mask: bool = False
    allows_full_mask: bool = False

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Reads ``dataclasses.asdict``'s object. Raises ValueError when it is not one."""
        return read_record(cls, value, "the run's rules")
