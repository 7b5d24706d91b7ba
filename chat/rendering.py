"""Markdown from users, models and tools, as HTML that is safe to put on a page.

Two walls: the parser knows no HTML and builds only links it has checked, and a sanitiser goes over what
it built. Everything that is not Markdown stays visible as text.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from runs.wire import contract

SCHEMES = frozenset({"http", "https", "mailto"})
REL = "noopener noreferrer nofollow"
TAGS = frozenset(
    {"a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p"}
    | {"pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
)
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}, "td": {"align"}, "th": {"align"}}

# The parser's time grows with the length, and with hostile input it is about 40 microseconds a character.
MAX_CHARACTERS = 40_000
# Of all texts of one page or answer.
MAX_TOTAL = 10 * MAX_CHARACTERS
# Levels of quotes and lists; a list takes two for each of its own.
MAX_DEPTH = 20


class _Renderer(RendererHTML):
    """Remote images would tell a stranger's server who reads what, so an image becomes a link to it."""

    def image(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[index]
        source = str(token.attrGet("src") or "")
        words = escape(self.renderInlineAsText(token.children, options, env) or source)
        if _inside_link(tokens, index):
            return words
        return f'<a href="{escape(source)}">{words}</a>'


def _inside_link(tokens: Sequence[Token], index: int) -> bool:
    return sum(token.nesting for token in tokens[:index] if token.type.startswith("link_")) > 0


class _Parser(MarkdownIt):
    """Takes whole addresses only: a relative one would be a link into this site, written by a stranger."""

    def validateLink(self, url: str) -> bool:
        return url.strip().partition(":")[0].lower() in SCHEMES


def _align_without_style(state: Any) -> None:
    """Say a cell's alignment in an attribute, since inline styles are neither needed nor allowed."""
    for token in state.tokens:
        style = token.attrs.pop("style", None) if token.type in ("th_open", "td_open") else None
        if style:
            token.attrs["align"] = style.partition(":")[2]


class _TooDeep(Exception):
    """A text is nested deeper than MAX_DEPTH."""


def _refuse_depth(state: Any, start: int, end: int, silent: bool) -> bool:
    """The first of the rules for blocks, which takes none. The parser would leave out what is too deep."""
    if state.level >= MAX_DEPTH:
        raise _TooDeep
    return False


def _parser() -> MarkdownIt:
    options = {"html": False, "breaks": True, "maxNesting": MAX_DEPTH + 2}  # a list may go down two at once
    parser = _Parser("commonmark", options, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
    parser.block.ruler.before("table", "refuse_depth", _refuse_depth)
    parser.core.ruler.push("align_without_style", _align_without_style)
    return parser


_markdown = _parser()
_sanitiser = nh3.Cleaner(
    tags=set(TAGS), attributes=ATTRIBUTES, url_schemes=set(SCHEMES), url_relative="deny", link_rel=REL
)


def render_markdown(text: str) -> SafeString:
    """CommonMark with tables and strikethrough as sanitised HTML.

    Links lead to http, https and mailto addresses only, images become links, HTML is shown as text. A text
    of more than MAX_CHARACTERS, or nested deeper than MAX_DEPTH, is shown as it is.
    """
    if len(text) > MAX_CHARACTERS:
        return _as_it_is(text)
    try:
        html = _markdown.render(_without_surrogates(text))
    except _TooDeep:
        return _as_it_is(text)
    return mark_safe(_sanitiser.clean(html))  # noqa: S308  sanitised


def _as_it_is(text: str) -> SafeString:
    return mark_safe(f"<pre>{escape(_without_surrogates(text))}</pre>")  # noqa: S308  escaped


def _without_surrogates(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which cannot be sent."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Piece: TypeAlias = list[tuple[Callable[[str], SafeString], str]]  # what to render, and how

# Parsing takes the interpreter's time from all else, so a process does little of it at once, whoever asks.
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="markdown")


async def render_all(texts: Sequence[str]) -> list[SafeString]:
    """``render_markdown`` of each; those before the last MAX_TOTAL characters are shown as they are.

    Piece by piece, so that no more is rendered once the caller is cancelled.
    """
    loop = asyncio.get_running_loop()
    rendered: list[SafeString] = []
    for piece in _pieces(texts):
        rendered += await loop.run_in_executor(_threads, _render_piece, piece)
    return rendered[::-1]


async def add_html(messages: Sequence[contract.Message]) -> None:
    """Give each of these messages its text as HTML."""
    rendered = await render_all([message["text"] for message in messages])
    for message, html in zip(messages, rendered, strict=True):
        message["html"] = html


def _pieces(texts: Sequence[str]) -> Iterator[Piece]:
    """What to render, last text first, in pieces that cost no more than one text may."""
    left = MAX_TOTAL
    piece: Piece = []
    size = 0
    for text in reversed(texts):
        if piece and size + len(text) > MAX_CHARACTERS:
            yield piece
            piece, size = [], 0
        left -= len(text) if len(text) <= MAX_CHARACTERS else 0  # a longer one is not parsed
        piece.append((render_markdown if left >= 0 else _as_it_is, text))
        size += len(text)
    if piece:
        yield piece


def _render_piece(piece: Piece) -> list[SafeString]:
    return [render(text) for render, text in piece]
