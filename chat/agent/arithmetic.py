"""Arithmetic from strangers: exact where it can be, bounded in time and size, and nothing but arithmetic."""

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import TypeAlias

Number: TypeAlias = int | float

MAX_EXPRESSION = 200  # characters
MAX_BITS = 4_096  # of a whole number


class NotArithmetic(ValueError):
    """The expression cannot be evaluated."""


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[[Number], Number]] = {"sqrt": math.sqrt, "abs": abs, "round": round}
_SPELLINGS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "^": "**"})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def evaluate(expression: str) -> str:
    """The value, as people write it. Raises NotArithmetic with a sentence."""
    if len(expression) > MAX_EXPRESSION:
        raise NotArithmetic(f"The expression is longer than {MAX_EXPRESSION} characters.")
    try:
        tree = ast.parse(_THOUSANDS.sub("", expression.strip()).translate(_SPELLINGS), mode="eval")
        value = _value(tree.body)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise NotArithmetic("This is not an arithmetic expression.") from error
    except ZeroDivisionError as error:
        raise NotArithmetic("Division by zero.") from error
    except (OverflowError, ValueError) as error:
        raise (
            error if isinstance(error, NotArithmetic) else NotArithmetic("The value does not exist.")
        ) from error
    return _written(value)


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _applied(type(sign), _value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](_value(argument)))
    raise NotArithmetic("Only numbers, + - * / // % **, parentheses, sqrt, abs and round are understood.")


def _applied(sign: type[ast.operator], left: Number, right: Number) -> Number:
    """The result, refused before it is computed when it would be huge."""
    whole = isinstance(left, int) and isinstance(right, int)
    if sign is ast.Pow and whole and abs(left) > 1 and math.log2(abs(left)) * abs(right) > MAX_BITS:
        raise NotArithmetic(f"The value has more than {MAX_BITS} bits.")
    return _bounded(_BINARY[sign](left, right))


def _bounded(value: Number) -> Number:
    if isinstance(value, complex):
        raise NotArithmetic("The value is no real number.")
    if isinstance(value, float) and not math.isfinite(value):
        raise NotArithmetic("The value is too large.")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise NotArithmetic(f"The value has more than {MAX_BITS} bits.")
    return value


def _written(value: Number) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
