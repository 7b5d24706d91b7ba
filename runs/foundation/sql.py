"""SQL for what every turn does: querysets compiled once, and rows written without ``Model.save``.

Django builds the SQL of a queryset each time, which costs ten times as much as executing the statement.
A page does not notice that; for the statements of a turn it would be nearly the whole cost. A compiled
queryset is still written in the ORM: lookups, locks, conversions and instances are Django's.
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
    """Stands for a value that is given with each call."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        return "%s", [self]


class Statement(Generic[T]):
    """A queryset that is compiled once: ``statement(*values)`` is the list of what ``build(*values)`` gives.

    ``build`` is called with a parameter in place of each value. In place of a list, for ``__in``, it gets a
    list of parameters. Lists are filled up with their last value to a power of two, so that few lengths are
    compiled. For an empty list the result is empty. The queryset may give instances, annotated or not but
    without related ones, or values_list. Ids must be UUIDs, not their texts.
    """

    def __init__(self, build: Callable[..., QuerySet[Any, T]]) -> None:
        self._build = build
        self._compiled: dict[tuple[int | None, ...], _Compiled] = {}  # by the lengths of the lists

    def __call__(self, *values: Any) -> list[T]:
        if [] in values:
            return []
        given = [_filled(value) if isinstance(value, list) else value for value in values]
        shape = tuple(len(value) if isinstance(value, list) else None for value in given)
        compiled = self._compiled.get(shape)
        if compiled is None:
            compiled = self._compiled[shape] = _compile(self._build, shape)
        return compiled.execute(given)

    def first(self, *values: Any) -> T | None:
        """The first of them, or None."""
        return next(iter(self(*values)), None)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The compiled form of a queryset."""

    sql: str
    parameters: tuple[Any, ...]  # a Parameter, or the value itself
    converters: list[tuple[int, Any, Any]]  # (column, functions, expression)
    make: Callable[[Row], Any]  # makes an instance or a tuple of a row

    def execute(self, values: Sequence[Any]) -> list[Any]:
        connection = connections[DEFAULT_DB_ALIAS]  # the proxy django.db.connection costs at each access
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
    """Insert a new instance that has all of its values. Costs half as much as ``Model.save``."""
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


def update(instance: Model, names: Iterable[str], expected: Mapping[str, Any] | None = None) -> bool:
    """Write the fields ``names`` of an instance, if its row has the values ``expected``; whether it had.

    Costs a fifth of ``Model.save``.
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
    """The values of these fields as the database takes them."""
    return [field.get_db_prep_save(getattr(instance, field.attname), connection) for field in fields]


def _compile(build: Callable[..., QuerySet[Any, Any]], shape: tuple[int | None, ...]) -> _Compiled:
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
    return _Compiled(
        sql,
        left,
        [(column, *converter) for column, converter in converters.items()],
        _maker(queryset.model, compiler) if is_model else tuple,
    )


def _with_constants(sql: str, parameters: Iterable[Any]) -> tuple[str, tuple[Any, ...]]:
    """The SQL with integers and simple words written into it, and the other parameters.

    As a parameter, a value that decides whether a partial index fits, such as a status, makes SQLite plan
    the statement each time. That takes several times as long as executing it.
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
