"""An OpenAI-compatible endpoint on this machine, whose model understands one thing: which tokens are in a window."""

import http.server
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


class Recorded:
    """What the server was asked, and what it is to answer instead of its own answers.

    - `failures`: statuses to answer the next requests with; `texts`: what to say to the next ones.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.failures: list[int] = []
        self.texts: list[str] = []
        self.lock = threading.Lock()

    def answer(self, request: dict[str, Any]) -> str:
        """Labels a component by the token that is marked most, and detects windows that hold the label's token."""
        prompt = request["messages"][-1]["content"]
        if self.texts:
            return self.texts.pop(0)
        if "said to be active on: " in prompt:
            token = re.findall(r"active on: the token (\S+)", prompt)[0]
            windows = re.findall(r"^(\d+)\. (.*)$", prompt, re.MULTILINE)
            return json.dumps({"active": [int(n) for n, text in windows if token in text.split()]})
        marked = re.findall(r"«(\w+)»", prompt) or ["nothing"]
        most = max(sorted(set(marked)), key=marked.count)
        return "Here it is:\n```json\n" + json.dumps({"label": f"the token {most}"}) + "\n```"


@contextmanager
def serving() -> Generator[Recorded, None, None]:
    """Runs the server as long as the block runs."""
    recorded = Recorded()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with recorded.lock:
                recorded.requests.append(request)
                recorded.keys.append(self.headers["Authorization"])
                status = recorded.failures.pop(0) if recorded.failures else 200
                text = recorded.answer(request) if status == 200 else ""
            reply: dict[str, Any] = {"error": {"message": "the model is\nnot there"}}
            if status == 200:
                message = {"role": "assistant", "content": text}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
                reply = {"id": "x", "object": "chat.completion", "created": 0}
                reply |= {"model": request["model"], "choices": [choice], "usage": usage}
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status == 429:
                self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorded.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield recorded
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
