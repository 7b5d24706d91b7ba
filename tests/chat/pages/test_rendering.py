"""Markdown becomes HTML that can do no harm, whoever wrote it."""

import asyncio
import re
import threading
import time
from html.parser import HTMLParser

import pytest
from django.utils.safestring import SafeString

from chat import rendering
from chat.rendering import ATTRIBUTES, MAX_CHARACTERS, MAX_DEPTH, REL, TAGS, render_all, render_markdown
from tests.chat.live import eventually


class Elements(HTMLParser):
    """All elements a browser would create, with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", {}))


def assert_harmless(html: str) -> None:
    for tag, attributes in Elements(html).found:
        assert tag in TAGS, html
        assert set(attributes) <= ATTRIBUTES.get(tag, set()) | ({"rel"} if tag == "a" else set()), html
        if tag == "a":
            href = attributes["href"] or ""
            assert href.startswith(("http://", "https://", "mailto:", "HTTP://", "HTTPS://")), html
            assert attributes["rel"] == REL


def test_markdown_is_rendered() -> None:
    html = render_markdown(
        "# Title\n\n**bold** and *soft* and ~~gone~~ and `code`\n\n- one\n- two\n\n3. three\n\n> said"
    )
    for piece in (
        "<h1>Title</h1>",
        "<strong>bold</strong>",
        "<em>soft</em>",
        "<s>gone</s>",
        "<code>code</code>",
    ):
        assert piece in html
    assert "<li>one</li>" in html
    assert '<ol start="3">' in html
    assert "<blockquote>" in html


def test_a_line_break_of_a_chat_message_stays_one() -> None:
    assert render_markdown("one\ntwo").strip() == "<p>one<br>\ntwo</p>"


def test_a_table_keeps_its_alignment_without_style() -> None:
    html = render_markdown("| a | b |\n|--:|:-:|\n| 1 | 2 |")
    assert '<th align="right">a</th>' in html
    assert '<td align="center">2</td>' in html
    assert "style" not in html


def test_a_fence_shows_its_code_as_text() -> None:
    html = render_markdown("```html\n<script>alert(1)</script>\n```")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert {tag for tag, _ in Elements(html).found} == {"pre", "code"}


@pytest.mark.parametrize(
    "address", ["http://a.example/x?y=1&z=2", "https://a.example/", "mailto:a@a.example"]
)
def test_a_link_to_the_outside_leads_there_and_says_nothing_of_us(address: str) -> None:
    [(_tag, attributes)] = [
        item for item in Elements(render_markdown(f"[here]({address})")).found if item[0] == "a"
    ]
    assert attributes == {"href": address, "rel": REL}


@pytest.mark.parametrize(
    "source", ["![cat](https://a.example/cat.png)", "![cat][1]\n\n[1]: https://a.example/cat.png"]
)
def test_a_remote_image_becomes_a_link(source: str) -> None:
    html = render_markdown(source)
    assert "<img" not in html
    assert 'href="https://a.example/cat.png"' in html
    assert ">cat</a>" in html


def test_an_image_in_a_link_becomes_the_link_s_words() -> None:
    html = render_markdown(
        "[![cat](https://a.example/cat.png)](https://b.example/) ![dog](https://a.example/dog.png)"
    )
    links = [(attributes["href"]) for tag, attributes in Elements(html).found if tag == "a"]
    assert links == ["https://b.example/", "https://a.example/dog.png"]
    assert Elements(html).text.strip() == "cat dog"


@pytest.mark.parametrize(
    "words", ["{{7*7}}", "{% load x %}", "${7*7}", "<b>bold</b>", "a < b & c", "</script>"]
)
def test_what_is_no_markdown_is_shown_as_it_was_written(words: str) -> None:
    html = render_markdown(words)
    assert Elements(html).text.strip() == words
    assert [tag for tag, _ in Elements(html).found] == ["p"]


HOSTILE = [
    "<script>alert(1)</script>",
    "<SCRIPT SRC=//a.example/x.js></SCRIPT>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><circle/></svg>",
    "<svg><script>alert&#40;1)</script></svg>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=alert(1)&gt;">',
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href='javascript:alert(1)'>x</a>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\nscript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](&#x6A;&#x61;vascript&colon;alert(1))",
    "[x](javascript&#58;alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x]( javascript:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](file:///etc/passwd)",
    "[x](//a.example/)",
    "[x](/admin/logout/)",
    "[x](#fragment)",
    "[x](?query)",
    "![x](javascript:alert(1))",
    "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+)",
    "![x](data:image/png;base64,AAAA)",
    "![x](/account/)",
    "<javascript:alert(1)>",
    "<data:text/html,x>",
    "[x]: javascript:alert(1)\n\n[x]",
    '[x](https://a.example/ "onmouseover=alert(1)")',
    '[x](https://a.example/" onmouseover="alert(1))',
    '![x" onerror="alert(1)](https://a.example/)',
    "![<script>alert(1)</script>](https://a.example/)",
    '![a](https://a.example/"><script>alert(1)</script>)',
    "`<script>alert(1)</script>`",
    '```"onload=alert(1)\n</code></pre><script>alert(1)</script>\n```',
    '```js" onmouseover="alert(1)\nx\n```',
    "**<b onclick=alert(1)>x</b>**",
    "| <script>alert(1)</script> |\n|---|\n| <img src=x onerror=alert(1)> |",
    "<!-- comment --><script>alert(1)</script>",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?php echo 1 ?><style>*{display:none}</style>",
    "<div style='position:fixed;inset:0'>x</div>",
    "<form action=//a.example><input name=password></form>",
    "<base href=//a.example/>",
    "<meta http-equiv=refresh content=0>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "[a](https://a.example/)<script",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "\u202ehttps://a.example\x00<script>\ud800",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_text_creates_no_element_and_no_handler(source: str) -> None:
    assert_harmless(render_markdown(source))


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_text_is_harmless_in_every_place_of_a_document(source: str) -> None:
    for frame in (
        "> {}",
        "- {}",
        "**{}**",
        "# {}",
        "[{}](https://a.example/)",
        "a\n\n{}\n\nb",
        "~~{}~~",
        "1. `{}",
    ):
        assert_harmless(render_markdown(frame.format(source.replace("\n", " "))))


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_text_is_harmless_cut_anywhere(source: str) -> None:
    """A stream shows the text cut after any character."""
    for length in range(len(source)):
        assert_harmless(render_markdown(source[:length]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "![",
        "[a](",
        "![](",
        "*a_",
        "**a ",
        "`",
        "> ",
        "- a\n",
        "|a",
        "~~a",
        "<",
        "<!--",
        "&#0;",
        "\\",
        "[a][",
        "\t",
    ],
)
def test_a_hundred_kilobytes_of_hostile_text_take_a_bounded_time(pattern: str) -> None:
    for length in (MAX_CHARACTERS, 100_000):
        source = (pattern * length)[:length]
        started = time.thread_time()  # others may be at work on this machine
        html = render_markdown(source)
        assert time.thread_time() - started < 10
        assert_harmless(html)


def test_a_text_nested_beyond_reason_is_rendered() -> None:
    for source in (
        ">" * 5_000 + "a",
        "[" * 5_000 + "a" + "]" * 5_000,
        "".join("  " * n + "- a\n" for n in range(190)),
    ):
        assert_harmless(render_markdown(source))


@pytest.mark.parametrize("depth", [*range(1, 30), 300])
def test_no_word_gets_lost_however_deep_it_is_nested(depth: int) -> None:
    for source in (
        "> " * depth + "word0",
        "".join("  " * level + f"- word{level}\n" for level in range(depth)),
        "".join("   " * level + f"1. word{level}\n" for level in range(depth)),
        "- > " * (depth // 2) + "word0\n\nword1",
        "> " * (depth - 1) + "- word0\n" + "> " * (depth - 1) + "  - word1",
        "> " * depth + "| word0 |\n" + "> " * depth + "|---|\n" + "> " * depth + "| word1 |",
        "> " * depth + "```\n" + "> " * depth + "word0\n",
    ):
        html = render_markdown(source)
        assert_harmless(html)
        assert re.findall(r"word\d+", Elements(html).text) == re.findall(r"word\d+", source), source


def test_a_text_nested_deeper_than_anybody_reads_is_shown_as_it_is() -> None:
    assert render_markdown("> " * MAX_DEPTH + "a <b>") == f"<pre>{'&gt; ' * MAX_DEPTH}a &lt;b&gt;</pre>"
    assert render_markdown("> " * (MAX_DEPTH - 1) + "a").count("<blockquote>") == MAX_DEPTH - 1


def test_a_text_too_long_to_parse_is_shown_as_it_is() -> None:
    html = render_markdown("**a** <b>" + "x" * MAX_CHARACTERS)
    assert html.startswith("<pre>**a** &lt;b&gt;xxx")
    assert_harmless(html)


def test_nothing_becomes_nothing() -> None:
    assert render_markdown("") == ""


# Many texts


async def test_of_many_texts_the_older_ones_are_shown_as_they_are(monkeypatch) -> None:
    monkeypatch.setattr(rendering, "MAX_CHARACTERS", 100)
    monkeypatch.setattr(rendering, "MAX_TOTAL", 240)
    short, fitting, long = "*a*", "*b*" + "x" * 77, "*c*" + "x" * 100
    html = await render_all([short, fitting, short, fitting, long, fitting, fitting, short])
    assert [one[:7] for one in html] == [
        "<pre>*a", "<pre>*b", "<pre>*a", "<pre>*b",  # all that is older than the first that is too much
        "<pre>*c", "<p><em>", "<p><em>", "<p><em>",
    ]  # fmt: skip
    assert await render_all([]) == []


@pytest.mark.timeout(60)
async def test_any_number_of_hostile_texts_takes_a_bounded_time(monkeypatch) -> None:
    spent = []
    render = rendering._render_piece

    def measured(piece):
        begun = time.thread_time()
        html = render(piece)
        spent.append(time.thread_time() - begun)
        return html

    monkeypatch.setattr(rendering, "_render_piece", measured)
    monkeypatch.setattr(rendering, "MAX_TOTAL", 2 * MAX_CHARACTERS)
    await render_all(["![" * (MAX_CHARACTERS // 2)] * 100)
    assert sum(spent) < 20


async def test_small_texts_are_rendered_together_and_no_piece_costs_more_than_one_text(monkeypatch) -> None:
    monkeypatch.setattr(rendering, "MAX_CHARACTERS", 10)
    texts = ["a" * length for length in (1, 2, 3, 4, 5, 11, 0, 10)]
    pieces = [[text for _, text in piece] for piece in rendering._pieces(texts)]
    assert [text for piece in pieces for text in piece] == texts[::-1]
    assert all(len(piece) == 1 or sum(map(len, piece)) <= 10 for piece in pieces)
    assert len(pieces) == 4


async def test_a_process_renders_few_texts_at_once_and_none_for_who_has_left(monkeypatch) -> None:
    begun: list[str] = []
    go_on = threading.Event()

    def slowly(text: str) -> SafeString:
        begun.append(text)
        go_on.wait(20)
        return SafeString(text)

    monkeypatch.setattr(rendering, "MAX_CHARACTERS", 1)
    monkeypatch.setattr(rendering, "render_markdown", slowly)
    leaving = [asyncio.create_task(render_all([f"{number}"] * 3)) for number in range(4)]
    await eventually(lambda: len(begun) == 2)
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    go_on.set()
    assert await render_all(["later"]) == ["later"]
    assert sorted(begun) == ["0", "1", "later"]
