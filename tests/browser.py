"""Headless Chromium, driven through its pipe (Chrome DevTools Protocol): pages are loaded, looked at and typed into."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def program() -> str | None:
    """The path of a Chromium on this machine."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """An open tab of a window of 1366 x 768."""

    def __init__(self, writes: int, reads: int) -> None:
        self._writes, self._reads = writes, reads
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []  # errors and what the page asked the network for
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str, dark: bool = False, width: int = 1366, height: int = 768) -> None:
        """Load a page, until it says that it is ready."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=url)
        self.until("document.body?.dataset.ready")

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited where it is a promise."""
        found = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, condition: str, seconds: float = 60) -> Any:
        """Waits for a condition to hold, looking once in each frame; its value."""
        wait = f"""new Promise((done, fail) => {{
            const end = performance.now() + {seconds * 1000};
            const look = () => {{
                const found = {condition};
                if (found) done(found);
                else if (performance.now() > end) fail(new Error("it never held"));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        return self.value(wait)

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, x: float, y: float, count: int = 1) -> None:
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=number)

    def picture(self, path: Path) -> None:
        """Write what is to be seen as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        kind, details = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(details["exceptionDetails"])[:500])
        if kind == "Network.requestWillBeSent" and not details["request"]["url"].startswith(
            ("file:", "blob:", "data:")
        ):
            self.problems.append(details["request"]["url"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._reads, 1 << 20)
            if not part:
                raise AssertionError("the browser ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a fresh browser, which ends with it."""
    found = program()
    assert found is not None
    to_read, writes = os.pipe()
    reads, to_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="luminal-", ignore_cleanup_errors=True) as profile:
        # The browser takes messages from descriptor 3 and answers on 4.
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        process = subprocess.Popen(
            ["bash", "-c", shell, found, *flags], pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        try:
            yield Page(writes, reads)
        finally:
            os.close(writes)
            os.close(reads)
            process.terminate()
            process.wait(30)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None: ...


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which the files of ``folder`` are served, on this machine alone."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
