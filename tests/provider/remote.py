"""A provider in a process of its own, and the handle to drive it."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from tests.provider.script import Round


class RemoteProvider:
    """Loads rounds into, and reads the ledger of, a provider in another process."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._client = httpx.Client(base_url=base_url.removesuffix("/v1") + "/control/", timeout=10)

    def add(self, *rounds: Round, marker: str = "", system: str = "", forever: bool = False) -> None:
        """As ``Script.add``."""
        self._post(
            "rounds",
            rounds=[item.to_json() for item in rounds],
            marker=marker,
            system=system,
            forever=forever,
        )

    def options(self, **options: Any) -> None:
        """Set ``strict``, ``strict_user_after_tool`` and ``default`` (a Round)."""
        if "default" in options:
            options["default"] = options["default"].to_json()
        self._post("options", **options)

    def clear(self) -> None:
        """Forget unused rounds and the ledger."""
        self._post("clear")

    def ledger(self) -> dict[str, Any]:
        """``{"calls": [Call], "prompt_tokens", "completion_tokens", "left": rounds not used yet}``."""
        return self._get("ledger")

    def gate(self, name: str) -> dict[str, Any]:
        """``{"arrivals": int, "opened": bool}``."""
        return self._get(f"gates/{name}")

    def open(self, gate: str) -> None:
        self._post(f"gates/{gate}")

    def close(self) -> None:
        self._client.close()

    def _get(self, path: str) -> dict[str, Any]:
        answer = self._client.get(path).raise_for_status().json()
        assert isinstance(answer, dict)
        return answer

    def _post(self, path: str, **data: Any) -> None:
        self._client.post(path, json=data).raise_for_status()


@contextlib.contextmanager
def provider_process(*arguments: str) -> Iterator[RemoteProvider]:
    """Run ``python -m tests.provider`` for the duration of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.provider", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        remote = RemoteProvider(process.stdout.readline().strip())
        try:
            yield remote
        finally:
            remote.close()
            process.terminate()
            process.wait(10)
