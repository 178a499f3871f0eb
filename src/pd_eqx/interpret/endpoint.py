"""A language model behind an OpenAI-compatible endpoint: asked slowly enough, again where it failed, and once only.

Every answer is written down under a hash of what was asked, before anything is made of it. So a command that was stopped,
by whatever, asks the second time only what it has no answer to.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class EndpointError(ValueError):
    """An endpoint that cannot be used: one line that says what it answered."""


class Answer(NamedTuple):
    """What came back, and how many tokens it took."""

    text: str
    tokens_in: int
    tokens_out: int


class Endpoint:
    """A model behind an endpoint; one of these may be used by several threads.

    - `url`: up to `/v1`; `model`: its name there; `key`: None where the endpoint wants none.
    - `answers`: a JSONL file that grows by a line an answer.
    - `per_minute`: requests at most; `retries`: of each, with growing pauses or those that the endpoint asks for.
    - `clock`, `sleep`: for tests.

    **Errors:** `EndpointError` for what is no URL.
    """

    def __init__(
        self,
        url: str,
        model: str,
        answers: Path,
        *,
        key: str | None = None,
        per_minute: float = 60.0,
        retries: int = 5,
        timeout: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        from openai import OpenAI

        if not url.startswith(("http://", "https://")):
            raise EndpointError(
                f"the endpoint is {url!r}; it must be a URL such as http://localhost:8000/v1"
            )
        self.url, self.model = url, model
        self._client = OpenAI(
            base_url=url, api_key=key or "none", max_retries=retries, timeout=timeout
        )
        self._answers = answers
        self._known = read_answers(answers)
        self._between = 60.0 / per_minute
        self._clock, self._sleep = clock, sleep
        self._next = clock()
        self._lock = threading.Lock()

    def knows(self, system: str, prompt: str, attempt: int = 0) -> bool:
        """Whether this was answered before."""
        return self._hash(system, prompt, attempt) in self._known

    def ask(self, system: str, prompt: str, *, tokens: int, attempt: int = 0) -> Answer:
        """The model's answer.

        **Arguments:**

        - `tokens`: at most in the answer.
        - `attempt`: another number asks the same anew.

        **Errors:** `EndpointError` where the endpoint refuses, or fails in all retries.
        """
        from openai import APIConnectionError, APIStatusError, OpenAIError

        hashed = self._hash(system, prompt, attempt)
        if hashed in self._known:
            return self._known[hashed]
        self._wait()
        try:
            completion = self._client.chat.completions.create(
                model=self.model,
                messages=[
                    {"role": "system", "content": system},
                    {"role": "user", "content": prompt},
                ],
                max_tokens=tokens,
                temperature=0.0 if attempt == 0 else 0.7,
            )
        except APIStatusError as error:
            raise EndpointError(
                f"{self.url} answered {error.status_code}: {_message(error.body)}"
            ) from None
        except APIConnectionError as error:
            raise EndpointError(
                f"{self.url} cannot be reached: {error.__cause__ or error}"
            ) from None
        except OpenAIError as error:
            raise EndpointError(f"{self.url}: {error}") from None
        choices, usage = completion.choices, completion.usage
        answer = Answer(
            (choices[0].message.content or "") if choices else "",
            usage.prompt_tokens if usage else 0,
            usage.completion_tokens if usage else 0,
        )
        self._write_down(hashed, answer)
        return answer

    def _wait(self) -> None:
        """Until the rate allows one more."""
        with self._lock:
            now = self._clock()
            at = max(self._next, now)
            self._next = at + self._between
        if at > now:
            self._sleep(at - now)

    def _write_down(self, hashed: str, answer: Answer) -> None:
        line = json.dumps({"asked": hashed, **answer._asdict()}, ensure_ascii=False)
        with self._lock:
            self._known[hashed] = answer
            self._answers.parent.mkdir(parents=True, exist_ok=True)
            with self._answers.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def _hash(self, system: str, prompt: str, attempt: int) -> str:
        asked = json.dumps([self.model, system, prompt, attempt])
        return hashlib.sha256(asked.encode()).hexdigest()


def read_answers(path: Path) -> dict[str, Answer]:
    """The answers in a file; a last line that was cut off is left out, and cut away so that the next is whole."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    records: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
    return {
        record["asked"]: Answer(record["text"], record["tokens_in"], record["tokens_out"])
        for record in records
    }


def _message(body: object) -> str:
    """What an error says, in whichever of the usual places."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    said = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(said).split())[:300]
