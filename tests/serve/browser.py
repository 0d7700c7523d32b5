"""Headless Chromium by its own protocol: nothing but aiohttp is needed to speak it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-port=0", "about:blank",
)  # fmt: skip


class Tab:
    """A tab of the browser; what its console says is in `console`."""

    def __init__(self, socket):
        self.socket, self.console, self.count = socket, [], 0

    async def call(self, method, **params):
        self.count += 1
        await self.socket.send_json({"id": self.count, "method": method, "params": params})
        while True:
            message = json.loads((await self.socket.receive(timeout=20)).data)
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]
            name, about = message.get("method"), message.get("params", {})
            if name == "Runtime.exceptionThrown":
                self.console.append(about["exceptionDetails"].get("text"))
            elif name == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
                self.console.append(str(about["args"]))
            elif name == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                self.console.append(about["entry"]["text"])

    async def run(self, script):
        """Return the value of an expression, which may be a promise."""
        result = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def wait_for(self, condition):
        for _ in range(200):
            if await self.run(condition):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(condition)

    async def open(self, url, width=1000):
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        await self.call("Page.navigate", url=url)
        await self.wait_for("location.href !== 'about:blank' && document.readyState == 'complete'")


@contextlib.asynccontextmanager
async def open_tab(folder: Path):
    """Start the browser, and give a tab of it."""
    process = subprocess.Popen(
        [CHROMIUM, f"--user-data-dir={folder}", *_FLAGS],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        place = folder / "DevToolsActivePort"
        for _ in range(400):
            if place.exists() and place.read_text().count("\n"):
                break
            assert process.poll() is None
            await asyncio.sleep(0.05)
        port = place.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                tabs = await answer.json()
            url = next(each["webSocketDebuggerUrl"] for each in tabs if each["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
    finally:
        process.terminate()
        process.wait(20)
