"""Secrets are masked in what is logged and shown.

A secret is known by its value, which stands in the settings or the environment, by the form that its issuer
gives it, or by the name in front of it.
"""

import os
import re
from collections.abc import Iterator
from functools import cache
from urllib.parse import quote, unquote

from django.conf import settings

MASK = "***"

# Shorter values are words that stand in any text.
_SHORTEST_SECRET = 6

_secret_name = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$")
_password_in_url = re.compile(r"""(://[^\s:/@"'<>]{0,200}):((?:(?!://)[^\s"'<>]){1,500})@""")
_user_in_url = re.compile(r"""://[^\s:/@"'<>]{16,500}@""")  # a token in place of a user
_known_forms = re.compile(
    r"""
    -----BEGIN\ [A-Z ]{0,30}PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]{0,30}PRIVATE\ KEY-----|\Z)
    | \b(?:
        sk-[\w-]{6,}                                          # OpenAI, Anthropic and others
      | [rsp]k_(?:live|test)_\w{8,}                           # Stripe
      | gh[oprsu]_\w{16,} | github_pat_\w{16,} | glpat-[\w-]{16,}
      | xox[a-z]-[\w-]{8,} | xapp-[\w-]{8,}                   # Slack
      | hf_\w{16,} | gsk_\w{16,} | r8_\w{16,} | npm_\w{16,}
      | lsv2_\w{16,} | tvly-[\w-]{8,} | xai-[\w-]{16,} | pplx-\w{16,} | pypi-[\w-]{16,}
      | A[KS]IA[0-9A-Z]{16}                                   # AWS
      | AIza[\w-]{30,} | ya29\.[\w-]{16,}                     # Google
      | SG\.[\w-]{10,}\.[\w-]{10,}                            # SendGrid
      | eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?                  # a JSON web token
    )
    """,
    re.VERBOSE | re.DOTALL,
)
# Quoted, also inside a text that is quoted itself, or up to what ends a word.
_value = (
    r"""(?:"[^"\n]{1,2000}"|'[^'\n]{1,2000}'|\\"[^"\\\n]{1,2000}\\"|\\'[^'\\\n]{1,2000}\\'"""
    r"""|[^\s"'&,;<>(){}\[\]\\]{1,2000}(?<!\.))"""
)
_header = re.compile(
    r"""\b((?:proxy-)?authorization|(?:set-)?cookie)((?:["']?\s{0,5}[:=]|["'],)\s{0,5})b?"""
    r"""(?:"[^"\n]+"?|'[^'\n]+'?"""
    r"""|(?:[a-z][\w-]{0,20}[ ]{1,5})?[^\s;"',(){}\[\]]+(?:;\s?[^\s;"',(){}\[\]]+)*)""",
    re.IGNORECASE,
)
_bearer = re.compile(r"\b(bearer)\s{1,5}[\w.~+/=-]{4,}", re.IGNORECASE)
_named = re.compile(
    r"""((?:(?:api|access|private|secret|account)[_\ -]?key|secret|token|password|passwd|pwd|passphrase"""
    r"""|signature|credentials?)(?:\\?["'])?"""
    r"""(?:\s{0,5}(?:=>|[=:])\s{0,5}|%3D|,\s{0,5}(?=["'])|\ provided:\ ))""" + _value,
    re.IGNORECASE,
)
_option = re.compile(rf"(--[\w-]{{0,40}}(?:password|secret|token|key)\s{{1,5}}){_value}", re.IGNORECASE)
_in_query = re.compile(
    r"([?&](?:key|sig|code|auth|access|jwt|session|sid|pass|pw|tok)=)[^\s&\"'<>]+", re.IGNORECASE
)


def masked(text: str) -> str:
    """``text`` with ``***`` in place of each secret that is known as one."""
    for secret in sorted(_secrets(), key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _known_forms.sub(MASK, text)
    text = _password_in_url.sub(rf"\1:{MASK}@", text)
    text = _user_in_url.sub(f"://{MASK}@", text)
    text = _header.sub(rf"\1\2{MASK}", text)
    text = _bearer.sub(rf"\1 {MASK}", text)
    text = _named.sub(rf"\1{MASK}", text)
    text = _option.sub(rf"\1{MASK}", text)
    return _in_query.sub(rf"\1{MASK}", text)


def _secrets() -> set[str]:
    """The values that are secrets, each also as it stands in a URL. Agents may add to the environment."""
    found: set[str] = set()
    for name, value in os.environ.items():
        if _secret_name.search(name):
            found.add(value)
        found.update(match[2] for match in _password_in_url.finditer(value))
    found.update(_of_settings())
    found |= {form for secret in found for form in (unquote(secret), quote(secret, safe=""))}
    return {secret for secret in found if len(secret) >= _SHORTEST_SECRET}


def _of_settings() -> Iterator[str]:
    for name in _secret_settings():
        value = getattr(settings, name, None)
        if isinstance(value, str):
            yield value
    for database in settings.DATABASES.values():
        yield str(database.get("PASSWORD") or "")


@cache
def _secret_settings() -> tuple[str, ...]:
    return tuple(filter(_secret_name.search, dir(settings)))
