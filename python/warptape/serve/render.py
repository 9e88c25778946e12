"""Chat templates in processes of their own, whose memory is limited and which are killed when they take too
long: what a template does in one step nothing within the front could end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import Any

from ..inference import chat_template
from ..inference.chat_template import LENGTH
from .workers import RequestError, WorkerError

TEMPLATE_SECONDS = 2.0
PROCESSES = 2
START_SECONDS = 60.0  # until a process is ready


class TemplateTimeoutError(RequestError):
    """A chat template that takes too long."""


class _Process:
    """One that renders, a conversation after the other."""

    def __init__(self) -> None:
        parent_end, child_end = socket.socketpair()
        with child_end:
            environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # no file of that folder is a module there
            command, fd = [sys.executable, chat_template.__file__], child_end.fileno()
            self._process = subprocess.Popen(command, stdin=fd, stdout=fd, env=environment)
        self._socket: socket.socket | None = parent_end
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def start(self) -> None:
        """Waits until it is ready."""
        assert self._socket is not None
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self._socket = None
        await asyncio.wait_for(self._answer(), START_SECONDS)

    async def _answer(self) -> dict[str, Any]:
        size = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
        answer: dict[str, Any] = json.loads(await self._reader.readexactly(size))
        return answer

    async def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. Raises: TimeoutError, and EOFError or OSError where the process ended.

        Args:
            request: becomes JSON.
            seconds: to wait at most.
        """
        data = json.dumps(request).encode()
        self._writer.write(LENGTH.pack(len(data)) + data)
        return await asyncio.wait_for(self._answer(), seconds)

    def kill(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        if self._socket is not None:
            self._socket.close()
        else:
            self._writer.close()


class RenderProcesses:
    """Renders conversations; processes are started when they are first needed.

    Args:
        seconds: that one may take.
        most: characters of a text.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds, self._most = seconds, most
        self._free: list[_Process] = []
        self._all: set[_Process] = set()
        self._places: asyncio.Semaphore | None = None

    async def __call__(
        self, template: str, messages: list[Any], values: dict[str, Any], continued: bool
    ) -> str:
        """The text. Raises: RequestError for what the template refuses or cannot do within the limits."""
        request = {
            "template": template,
            "messages": messages,
            "values": values,
            "continued": continued,
            "most": self._most,
        }
        if self._places is None:
            self._places = asyncio.Semaphore(PROCESSES)
        async with self._places:
            process = self._free.pop() if self._free else await self._started()
            try:
                answer = await process.ask(request, self._seconds)
            except (asyncio.TimeoutError, TimeoutError) as error:
                raise TemplateTimeoutError(f"the chat template took more than {self._seconds:g} s") from error
            except (asyncio.IncompleteReadError, OSError) as error:
                raise RequestError("the chat template refuses these messages: its process ended") from error
            else:
                self._free.append(process)
            finally:
                if process not in self._free:  # it may still render
                    self._all.discard(process)
                    process.kill()
        if "error" in answer:
            raise RequestError(answer["error"])
        text: str = answer["text"]
        return text

    async def _started(self) -> _Process:
        process = _Process()
        self._all.add(process)
        try:
            await process.start()
        except BaseException as error:
            self._all.discard(process)
            process.kill()
            if isinstance(error, (asyncio.IncompleteReadError, OSError, asyncio.TimeoutError)):
                raise WorkerError("the process that renders chat templates cannot be started") from error
            raise
        return process

    def close(self) -> None:
        """Ends the processes."""
        for process in self._all:
            with contextlib.suppress(OSError, RuntimeError):
                process.kill()
        self._all.clear()
        self._free.clear()
