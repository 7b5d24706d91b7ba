"""The fields of a form whose contents become a JSON value."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]
Path: TypeAlias = tuple[str, ...]

_LINE = 60


class Kind(StrEnum):
    """What a field takes."""

    TEXT = "text"
    LINE = "line"  # text without line breaks
    NUMBER = "number"
    INTEGER = "integer"
    CHOICE = "choice"
    JSON = "json"


class Blank(StrEnum):
    """What an empty field means."""

    REFUSED = "refused"
    LEFT_OUT = "left_out"
    KEPT = "kept"  # an empty text


@dataclass(slots=True)
class Field:
    """One input of a form, with what stands in it."""

    label: str
    path: Path  # where its value belongs
    kind: Kind
    blank: Blank = Blank.REFUSED
    hint: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # of a choice: value by what is shown
    name: str = ""
    text: str = ""
    error: str = ""

    @property
    def is_optional(self) -> bool:
        return self.blank is Blank.LEFT_OUT

    def fill(self, value: Any) -> None:
        """Show this value."""
        if self.kind is Kind.CHOICE:
            self.text = next((text for text, option in self.options.items() if _same(option, value)), "")
        elif isinstance(value, str) and self.kind is not Kind.JSON:
            self.text = value
        else:
            self.text = as_json(value)

    def read(self) -> Any:
        """The value of what stands in it. Raises ValueError with a sentence."""
        match self.kind:
            case Kind.TEXT | Kind.LINE:
                return self.text
            case Kind.CHOICE:
                if self.text not in self.options:
                    raise ValueError("Choose one of these.")
                return self.options[self.text]
            case Kind.NUMBER | Kind.INTEGER:
                return self._number()
            case Kind.JSON:
                return _parsed(self.text)

    def _number(self) -> int | float:
        wanted = "a whole number" if self.kind is Kind.INTEGER else "a number"
        try:
            number = _parsed(self.text.strip())
        except ValueError:
            number = None
        allowed = int if self.kind is Kind.INTEGER else int | float
        if isinstance(number, bool) or not isinstance(number, allowed):
            raise ValueError(f"This must be {wanted}.")
        return number


def as_json(value: Any) -> str:
    """A value as JSON, for reading: on one line if it is short."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= _LINE else json.dumps(value, ensure_ascii=False, indent=2)


def of_value(label: str, path: Path, value: Any) -> Field:
    """A field for a value like this one, filled with it."""
    if isinstance(value, str):
        made = Field(label, path, Kind.TEXT, Blank.KEPT)
    elif isinstance(value, bool):
        made = _yes_or_no(label, path)
    elif isinstance(value, int | float):
        made = Field(label, path, Kind.NUMBER)
    else:
        made = Field(label, path, Kind.JSON)
    made.fill(value)
    return made


def of_schema(schema: Schema, path: Path = ()) -> list[Field]:
    """Fields for a JSON Schema: one for each property of an object, else one for the whole value."""
    whole = resolve(schema, schema)
    properties = whole.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return [_of_property("", whole, schema, path, Blank.REFUSED)]
    required = whole.get("required") or ()
    made = []
    for name, inner in properties.items():
        if isinstance(inner, Mapping):
            blank = Blank.REFUSED if name in required else Blank.LEFT_OUT
            made.append(_of_property(name, inner, schema, (*path, name), blank))
    return made


def resolve(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference inside ``root`` leads to; the schema itself if it is none."""
    for _ in range(10):  # references may form a circle
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            break
        schema = found
    return schema


def _of_property(name: str, schema: Schema, root: Schema, path: Path, blank: Blank) -> Field:
    label = str(schema.get("title") or name)
    inner = _without_null(resolve(schema, root), root)
    if inner is None:
        return _dressed(Field(label, path, Kind.JSON, blank), schema)
    options = inner.get("enum") or ([inner["const"]] if "const" in inner else None)
    if isinstance(options, list):
        shown = {option if isinstance(option, str) else json.dumps(option): option for option in options}
        made = Field(label, path, Kind.CHOICE, blank, options=shown)
    elif inner.get("type") == "boolean":
        made = _yes_or_no(label, path, blank)
    else:
        kinds = {"string": Kind.LINE, "integer": Kind.INTEGER, "number": Kind.NUMBER}
        made = Field(label, path, kinds.get(str(inner.get("type")), Kind.JSON), blank)
    return _dressed(made, {**inner, **schema})


def _without_null(schema: Schema, root: Schema) -> Schema | None:
    """The schema of a value that may also be null; None if there are several alternatives."""
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(alternatives, list):
        return schema
    named = [resolve(one, root) for one in alternatives if isinstance(one, Mapping)]
    found = [one for one in named if one.get("type") != "null"]
    return found[0] if len(found) == 1 else None


def _dressed(made: Field, schema: Mapping[str, Any]) -> Field:
    made.hint = str(schema.get("description") or "")
    if schema.get("default") is not None:
        made.fill(schema["default"])
    return made


def _yes_or_no(label: str, path: Path, blank: Blank = Blank.REFUSED) -> Field:
    return Field(label, path, Kind.CHOICE, blank, options={"Yes": True, "No": False})


def _same(option: Any, value: Any) -> bool:
    """To Python, 1 equals true."""
    return type(option) is type(value) and bool(option == value)


def _parsed(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise ValueError('This must be JSON: a text needs quotes, as in "yes".') from None
