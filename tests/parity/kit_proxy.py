"""A reverse proxy that raises the temperature: SGLang's kits ask for temperature 0 in their own code, so the same kits ask a
server at another temperature through it. Nothing else of a request changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from serving import free_port

# What a client's connection says about itself, not about the request; the proxy has connections of its own.
HOP_HEADERS = {"host", "content-length", "connection", "transfer-encoding", "content-encoding", "accept-encoding"}
OPENAI_PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/messages")


def at_temperature(path: str, body: Any, temperature: float) -> Any:
    """`body` as it would read had it asked for `temperature`: also where it names none, so that the model's own default does
    not decide. `top_k` 1 stays: it asks for greedy decoding by another name."""
    if not isinstance(body, dict):
        return body
    if path in OPENAI_PATHS:
        return body | {"temperature": temperature}
    if path != "/generate":
        return body
    sampling = body.get("sampling_params") or {}
    if isinstance(sampling, list):
        return body | {"sampling_params": [one | {"temperature": temperature} for one in sampling]}
    return body | {"sampling_params": sampling | {"temperature": temperature}}


@contextlib.contextmanager
def proxy(url: str, temperature: float):
    """Yields the address of a proxy for the server at `url`; requests through it run at `temperature`."""
    port, loop = free_port(), asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        app = web.Application(client_max_size=1 << 30)
        # No limit: a kit that opens 400 connections means it.
        async with ClientSession(timeout=ClientTimeout(total=None), connector=TCPConnector(limit=0)) as session:
            app.router.add_route("*", "/{tail:.*}", lambda request: _forward(session, url, request, temperature))
            # Cancelled handlers close their connection to the server: a client that hangs up still aborts its request.
            runner = web.AppRunner(app, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            started.set()
            await stop.wait()
            await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(10), "the proxy did not start"
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(70)


async def _forward(session: ClientSession, url: str, request: web.Request, temperature: float) -> web.StreamResponse:
    content = await request.read()
    if content and "json" in request.headers.get("content-type", ""):
        with contextlib.suppress(ValueError):
            content = json.dumps(at_temperature(request.path, json.loads(content), temperature)).encode()
    headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
    async with session.request(request.method, url + request.path_qs, data=content, headers=headers) as answer:
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_HEADERS}
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response
