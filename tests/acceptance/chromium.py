"""A real browser without a window, asked over its debugging pipe."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Seconds that it may take to start, to load a page, to answer.
_TIMEOUT_S = 60


class Chromium:
    """One page at a time.

    The browser reads commands from its descriptor 3 and answers on 4, JSON ended by a zero byte.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        #: What the browser told unasked, since the last page was opened.
        self.events: list[dict[str, Any]] = []
        (target,) = [
            each for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page"
        ]
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")

    def open(self, page: Path, width: int, height: int = 900, scheme: str = "light") -> None:
        """Loads a file into a window of so many pixels of CSS."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression is in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """The whole page, as far as it goes below the window, as PNG."""
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def print_pdf(self) -> bytes:
        """The page as it would be printed."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=True)["data"])

    @property
    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[str]:
        """What stands in the browser's console."""
        entries = [
            event["params"]["entry"]["text"]
            for event in self.events
            if event["method"] == "Log.entryAdded"
        ]
        return entries + [
            json.dumps(event["params"])
            for event in self.events
            if event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        ]

    def ask(self, method: str, **parameters: object) -> Any:
        """One command of the protocol and its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], _TIMEOUT_S)
            assert ready, f"the browser has said nothing for {_TIMEOUT_S} s"
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._unread += piece
        message, _, self._unread = self._unread.partition(b"\0")
        read: dict[str, Any] = json.loads(message)
        return read


@contextmanager
def running_chromium(folder: Path) -> Iterator[Chromium]:
    """A browser with a profile of its own; the test is skipped where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium to look at the page with")
    command_in, command_out = os.pipe()
    answer_in, answer_out = os.pipe()
    # The shell puts the pipes where the browser looks for them.
    line = f'exec "$@" 3<&{command_in} 4>&{answer_out}'
    command = [
        *("bash", "-c", line, "bash", program),
        *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={folder}"),
        "about:blank",
    ]
    with (folder.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            pass_fds=(command_in, answer_out),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(command_in)
    os.close(answer_out)
    try:
        yield Chromium(command_out, answer_in)
    finally:
        os.close(command_out)
        os.close(answer_in)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
