"""Strict readers of environment variables: a value is right, or the start ends with one sentence.

Each reader takes the variable's name and its default and raises ImproperlyConfigured with a message that
names the variable and says what it takes. A variable that is set to nothing counts as unset.
"""

import json
import math
import os
from collections.abc import Collection, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import environ
from django.core.exceptions import ImproperlyConfigured

# Every variable that was asked for: the table in docs/operating/settings.md is compared with it.
names: set[str] = set()

_ON = ("on", "true", "yes", "1")
_OFF = ("off", "false", "no", "0")


def text(name: str, default: str = "") -> str:
    """The value as it is."""
    names.add(name)
    return os.environ.get(name, "").strip() or default


def choice(name: str, options: Collection[str], default: str) -> str:
    """One of ``options``, exactly as written there."""
    value = text(name, default)
    if value not in options:
        raise _wrong(name, ("one of " if len(options) > 1 else "") + ", ".join(options), value)
    return value


def flag(name: str, default: bool) -> bool:
    """A switch: on or off, and the usual other words for these."""
    value = text(name, "on" if default else "off")
    if value.lower() not in _ON + _OFF:
        raise _wrong(name, "on or off", value)
    return value.lower() in _ON


def count(name: str, default: int, *, least: int = 1, most: int | None = None) -> int:
    """A whole number from ``least`` to ``most``."""
    value = text(name, str(default))
    number = int(value) if value.isascii() and value.isdigit() else -1
    if number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise _wrong(name, f"a whole number {bounds}", value)
    return number


def seconds(name: str, default: float, *, zero: bool = False) -> float:
    """A time in seconds; above 0 unless ``zero`` is allowed."""
    value = text(name, str(default))
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise _wrong(name, f"a number of seconds, {'0 or more' if zero else 'more than 0'}", value)
    return number


def listing(name: str, default: Collection[str] = ()) -> list[str]:
    """Several values, separated by commas."""
    return [item.strip() for item in text(name, ",".join(default)).split(",") if item.strip()]


def origins(name: str) -> list[str]:
    """Web origins, separated by commas: scheme and host, no path."""
    found = listing(name)
    for origin in found:
        scheme, separator, host = origin.partition("://")
        if scheme not in ("http", "https") or not separator or not host or "/" in host:
            raise _wrong(name, "origins such as https://chat.example.com, separated by commas", origin)
    return found


def networks(name: str) -> list[IPv4Network | IPv6Network]:
    """Addresses or networks, separated by commas."""
    found = []
    for item in listing(name):
        try:
            found.append(ip_network(item))
        except ValueError:
            raise _wrong(
                name, "addresses or networks such as 127.0.0.1 or 10.0.0.0/8, separated by commas", item
            ) from None
    return found


def mapping(name: str, default: Mapping[str, str]) -> dict[str, str]:
    """A JSON object of names and dotted paths, ``{"name": "package.module:function"}``; not an empty one."""
    value = text(name)
    try:
        found = json.loads(value) if value else dict(default)
    except ValueError:
        found = None
    if (
        not isinstance(found, dict)
        or not found
        or not all(key and _is_dotted_path(path) for key, path in found.items())
    ):
        raise _wrong(name, 'a JSON object such as {"assistant": "package.module:function"}', value)
    return found


def model(name: str, default: str) -> str:
    """``demo``, or a provider and its model, ``openai:...`` or ``anthropic:...``."""
    value = text(name, default)
    provider, _, model_name = value.partition(":")
    if value != "demo" and not (provider in ("openai", "anthropic") and model_name):
        raise _wrong(name, "demo, openai:<model> or anthropic:<model>", value)
    return value


def time_zone(name: str, default: str) -> str:
    """The name of a time zone."""
    value = text(name, default)
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # an unknown name, a path, the name of a folder
        raise _wrong(name, "the name of a time zone such as Europe/Vienna", value) from None
    return value


def directory(name: str, default: Path) -> Path:
    """A folder of this server's own, made when it is missing, readable by nobody else."""
    value = Path(text(name, str(default))).expanduser().absolute()
    try:
        value.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _wrong(
            name, f"a folder that can be made or written to ({error.strerror})", str(value)
        ) from None
    if not os.access(value, os.W_OK | os.X_OK):
        raise _wrong(name, "a folder that can be written to", str(value))
    return value


def address(name: str, schemes: Collection[str]) -> str:
    """The address of a service, with one of ``schemes``; empty when unset."""
    value = text(name)
    if value and value.partition("://")[0] not in schemes:
        raise _wrong_address(name, f"that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    return value


def postgresql(name: str) -> dict[str, Any] | None:
    """The parts of a PostgreSQL address as Django's DATABASES names them; None when unset."""
    value = address(name, ("postgresql", "postgres"))
    if not value:
        return None
    try:
        parts = environ.Env.db_url_config(value)
    except ValueError:
        parts = {}
    if not parts.get("NAME"):
        raise _wrong_address(name, "such as postgresql://user:password@host:5432/database")
    return dict(parts)


def _is_dotted_path(path: object) -> bool:
    if not isinstance(path, str):
        return False
    module, separator, function = path.partition(":")
    return (
        bool(separator) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
    )


def _wrong(name: str, expected: str, value: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{name} must be {expected}, not {value!r}.")


def _wrong_address(name: str, expected: str) -> ImproperlyConfigured:
    """Says what is wrong without repeating the address, which may hold a password."""
    return ImproperlyConfigured(f"{name} must be an address {expected}.")
