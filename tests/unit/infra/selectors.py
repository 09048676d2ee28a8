"""Whom a label selector means."""

from collections.abc import Mapping

from .manifests import Manifest


def selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Whether a selector means something with these labels; an empty one means everything.

    Raises:
        ValueError: an operator that is not used here so far.
    """
    is_meant = all(
        labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()
    )
    for expression in selector.get("matchExpressions", []):
        if expression["operator"] != "In":
            raise ValueError(f"operator {expression['operator']} is not known here")
        is_meant &= labels.get(expression["key"]) in expression["values"]
    return is_meant
