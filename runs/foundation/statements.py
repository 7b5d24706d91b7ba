"""Querysets that are compiled once.

Django builds the SQL of a queryset anew each time, which costs ten times as much as the statement itself.
That is nothing to a page; of what each turn asks for, it would be nearly all of the cost. What is prepared
stays written in the ORM: lookups, locks, conversions and instances are Django's.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression, Model, QuerySet, UUIDField
from django.db.models.query import ModelIterable
from django.db.models.sql.compiler import SQLCompiler

T = TypeVar("T")
Row: TypeAlias = list[Any]

_uuid = UUIDField().get_db_prep_value


class Parameter(Expression):
    """Stands for a value that comes with each call."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        return "%s", [self]


class Prepared(Generic[T]):
    """``prepared(*values)`` is the list of what ``build(*values)`` gives.

    ``build`` is called with a parameter in place of each value, and with a list of parameters in place of a
    list, which ``__in`` takes. A list is filled up with its last value to one of few lengths; an empty one
    gives nothing. What is asked for are instances, annotated or not but without related ones, or values_list.
    Ids have to be UUIDs: their text would be taken for a text.
    """

    def __init__(self, build: Callable[..., QuerySet[Any, T]]) -> None:
        self._build = build
        self._statements: dict[tuple[int | None, ...], _Statement] = {}

    def __call__(self, *values: Any) -> list[T]:
        if [] in values:
            return []
        given = [_filled(value) if isinstance(value, list) else value for value in values]
        shape = tuple(len(value) if isinstance(value, list) else None for value in given)
        statement = self._statements.get(shape)
        if statement is None:
            statement = self._statements[shape] = _compile(self._build, shape)
        return statement.execute(given)

    def first(self, *values: Any) -> T | None:
        """The first of them, or None."""
        return next(iter(self(*values)), None)


@dataclass(frozen=True, slots=True)
class _Statement:
    """What a queryset was compiled to."""

    sql: str
    parameters: tuple[Any, ...]  # a Parameter, or the value itself
    converters: list[tuple[int, Any, Any]]  # (column, functions, expression)
    make: Callable[[Row], Any]  # what is wanted of a row

    def execute(self, values: Sequence[Any]) -> list[Any]:
        connection = connections[DEFAULT_DB_ALIAS]  # itself: its proxy looks for it at each touch
        flat = [
            _uuid(value, connection) if isinstance(value, UUID) else value
            for given in values
            for value in (given if isinstance(given, list) else (given,))
        ]
        with connection.cursor() as cursor:
            cursor.execute(
                self.sql,
                [flat[one.place] if isinstance(one, Parameter) else one for one in self.parameters],
            )
            rows = [list(row) for row in cursor.fetchall()]
        for row in rows:
            for column, functions, expression in self.converters:
                for function in functions:
                    row[column] = function(row[column], expression, connection)
        return [self.make(row) for row in rows]


def insert(instance: Model) -> None:
    """Make the row of a new instance, which has all of its values; costs half of its own ``save``."""
    fields: Sequence[Any] = instance._meta.concrete_fields
    connection = connections[DEFAULT_DB_ALIAS]
    columns = ", ".join(f'"{field.column}"' for field in fields)
    places = ", ".join(["%s"] * len(fields))
    with connection.cursor() as cursor:
        cursor.execute(
            f'INSERT INTO "{instance._meta.db_table}" ({columns}) VALUES ({places})',  # noqa: S608 - names
            _values(instance, fields, connection),
        )
    instance._state.adding, instance._state.db = False, connection.alias


def save(instance: Model, names: Iterable[str], expected: Mapping[str, Any] | None = None) -> bool:
    """Write these fields of an instance if its row is there and has the values ``expected``; whether it had.

    Costs a fifth of its own ``save``.
    """
    fields: list[Any] = [instance._meta.get_field(name) for name in names]
    assignments = ", ".join(f'"{field.column}" = %s' for field in fields)
    key: Any = instance._meta.pk
    connection = connections[DEFAULT_DB_ALIAS]
    conditions, values = f'"{key.column}" = %s', _values(instance, (*fields, key), connection)
    for name, value in (expected or {}).items():
        field: Any = instance._meta.get_field(name)
        conditions += f' AND "{field.column}" IS NULL' if value is None else f' AND "{field.column}" = %s'
        values += [] if value is None else [field.get_db_prep_save(value, connection)]
    with connection.cursor() as cursor:
        cursor.execute(
            f'UPDATE "{instance._meta.db_table}" SET {assignments} WHERE {conditions}',  # noqa: S608 - names
            values,
        )
        return bool(cursor.rowcount)


def _values(instance: Model, fields: Sequence[Any], connection: BaseDatabaseWrapper) -> list[Any]:
    """What goes into the columns of these fields."""
    return [field.get_db_prep_save(getattr(instance, field.attname), connection) for field in fields]


def _compile(build: Callable[..., QuerySet[Any, Any]], shape: tuple[int | None, ...]) -> _Statement:
    places = count()
    given = [
        Parameter(next(places)) if length is None else [Parameter(next(places)) for _ in range(length)]
        for length in shape
    ]
    queryset = build(*given)
    compiler = queryset.query.get_compiler(DEFAULT_DB_ALIAS)
    sql, parameters = compiler.as_sql()
    converters = compiler.get_converters([column[0] for column in compiler.select])
    is_model = issubclass(queryset._iterable_class, ModelIterable)
    sql, left = _with_constants(sql, parameters)
    return _Statement(
        sql,
        left,
        [(column, *converter) for column, converter in converters.items()],
        _maker(queryset.model, compiler) if is_model else tuple,
    )


def _with_constants(sql: str, parameters: Iterable[Any]) -> tuple[str, tuple[Any, ...]]:
    """The SQL with the numbers and names among its parameters written into it, and the parameters left.

    SQLite plans a statement anew whenever it is given a value that decides whether a partial index will do,
    such as a status, and that takes several times as long as the statement itself.
    """
    text, *others = sql.split("%s")
    left = []
    for value, behind in zip(parameters, others, strict=True):
        if isinstance(value, int) and not isinstance(value, bool):
            text += f"{value}{behind}"
        elif isinstance(value, str) and re.fullmatch(r"[\w.]*", value, re.ASCII):
            text += f"'{value}'{behind}"
        else:
            text += f"%s{behind}"
            left.append(value)
    return text, tuple(left)


def _maker(model: type[Model], compiler: Any) -> Callable[[Row], Any]:
    columns = compiler.klass_info["select_fields"]
    names = [compiler.select[column][0].target.attname for column in columns]
    annotations = list(compiler.annotation_col_map.items())

    def make(row: Row) -> Any:
        instance = model.from_db(DEFAULT_DB_ALIAS, names, [row[column] for column in columns])
        for name, column in annotations:
            setattr(instance, name, row[column])
        return instance

    return make


def _filled(values: list[Any]) -> list[Any]:
    """Repeat the last value until their number is a power of two."""
    return values + values[-1:] * ((1 << (len(values) - 1).bit_length()) - len(values))
