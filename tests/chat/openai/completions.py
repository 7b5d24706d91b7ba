"""Calls of the OpenAI protocol against the ASGI application, in this process."""

import json
from typing import Any

from tests.chat.live import PATIENT, Answer, Http, bearer


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    """A request for a completion; a text is a message of the user's."""
    said = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    return {"model": "assistant", "messages": said or [{"role": "user", "content": "hello"}], **fields}


async def request(user: Any, method: str, path: str, content: Any = None, **headers: str) -> Http:
    credentials = await bearer(user) if user else {}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Http(method, f"/v1/{path}", content, {**credentials, **named})


async def whole(http: Http) -> Answer:
    answer = await http.begin()
    while True:
        message = await http.receive_output(PATIENT)
        answer.body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await http.wait(PATIENT)
    return answer


async def call(user: Any, method: str, path: str, content: Any = None, **headers: str) -> Answer:
    return await whole(await request(user, method, path, content, **headers))


async def complete(actor: Any, /, *messages: Any, headers: Any = None, **fields: Any) -> Answer:
    return await call(actor, "POST", "chat/completions", body(*messages, **fields), **(headers or {}))


async def stream(actor: Any, /, *messages: Any, headers: Any = None, **fields: Any) -> tuple[Answer, Http]:
    content = body(*messages, stream=True, **fields)
    http = await request(actor, "POST", "chat/completions", content, **(headers or {}))
    return await http.begin(), http


async def data_of(http: Http) -> list[Any]:
    """All that is left of a stream of chunks, the word at its end included."""
    found = []
    while (block := await http.block()) is not None:
        if "data" in block:
            found.append("[DONE]" if block["data"] == "[DONE]" else json.loads(block["data"]))
    return found


def text_of(chunks: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        if chunk != "[DONE]"
        for choice in chunk.get("choices", ())
    )


def error_of(answer: Answer) -> tuple[int, str]:
    """Status and code of an error, which must have OpenAI's form."""
    assert answer.headers["content-type"].startswith("application/json"), answer.body
    found = answer.json()
    assert list(found) == ["error"], found
    assert {"message", "type", "param", "code"} <= set(found["error"]), found
    assert found["error"]["message"]
    return answer.status, found["error"]["code"]
