"""Reading JSON objects strictly: a missing, unknown or wrongly typed field is an error.

What crosses a process boundary may come from another version of statetap. A field that is
silently ignored or defaulted there is how wrong data gets in.
"""

from collections.abc import Mapping
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
R = TypeVar("R", bound="DataclassInstance")


class FieldReader:
    """Takes the fields of one decoded JSON object, one by one.

    Raises:
        ValueError: on construction for anything but an object, by ``take`` for a missing field
            or a wrong type, by ``finish`` for fields that nobody took.
    """

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, Mapping):
            raise ValueError(f"{what} is {type(value).__name__}, not an object")
        self._left = dict(value)
        self._what = what

    def take(self, name: str, kind: type[T]) -> T:
        """The field's value, exactly of type ``kind`` (a bool is no int)."""
        if name not in self._left:
            raise ValueError(f"{self._what} has no field {name!r}")
        value = self._left.pop(name)
        if type(value) is not kind:
            raise ValueError(
                f"{self._what}: {name!r} is {type(value).__name__}, not {kind.__name__}"
            )
        return value

    def take_ints(self, name: str) -> tuple[int, ...]:
        """A list of integers as a tuple."""
        values = self.take(name, list)
        if not all(type(value) is int for value in values):
            raise ValueError(f"{self._what}: {name!r} is not a list of integers")
        return tuple(values)

    def finish(self) -> None:
        """Refuses fields that were not taken."""
        if self._left:
            unknown = ", ".join(sorted(map(str, self._left)))
            raise ValueError(f"{self._what} has unknown fields: {unknown}")


def read_record(record: type[R], value: object, what: str) -> R:
    """Reads a decoded JSON object into a dataclass of strings, numbers, bools and int tuples.

    Args:
        record: the dataclass; each of its fields must be there, exactly of its type.
        value: what ``json.loads`` gave.
        what: names the record in messages.

    Raises:
        ValueError: as ``FieldReader``, or from the dataclass itself.
    """
    reader = FieldReader(value, what)
    taken = {
        field.name: reader.take_ints(field.name)
        if field.type == tuple[int, ...]
        else reader.take(field.name, _kind(field.type))
        for field in fields_of(record)
    }
    reader.finish()
    return record(**taken)


def record_of(record: "DataclassInstance") -> dict[str, object]:
    """The JSON object that ``read_record`` reads back: of a dataclass without others in it."""
    # ``asdict`` copies deeply, which takes seven times as long.
    values = {field.name: getattr(record, field.name) for field in fields_of(record)}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }


def _kind(kind: object) -> type[object]:
    if not isinstance(kind, type):
        raise TypeError(f"{kind} is no type that JSON has")
    return kind
