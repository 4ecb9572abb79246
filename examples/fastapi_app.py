"""The engine inside a web application: it shares the application's event loop.

pip install fastapi uvicorn, then: python examples/fastapi_app.py
curl -N localhost:8000/chat -H 'content-type: application/json' -d '{"content": "What is the capital of France?"}'

A client that disconnects ends its request: the response's generator is closed, which closes the stream.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from callboard import Engine, EngineOverloadedError, InvalidRequestError, RequestStream, SamplingParams


class Question(BaseModel):
    content: str
    max_tokens: int = 256
    temperature: float = 0.0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Engine.from_pretrained(os.environ.get("CALLBOARD_MODEL", "smollm2")) as app.state.engine:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chat")
async def chat(question: Question, request: Request) -> StreamingResponse:
    engine: Engine = request.app.state.engine
    try:
        params = SamplingParams(temperature=question.temperature, max_tokens=question.max_tokens)
        stream = engine.chat([{"role": "user", "content": question.content}], params)
    except InvalidRequestError as error:
        raise HTTPException(422, str(error)) from error
    except EngineOverloadedError as error:
        raise HTTPException(503, str(error), headers={"retry-after": "1"}) from error
    return StreamingResponse(texts(stream), media_type="text/plain; charset=utf-8")


async def texts(stream: RequestStream) -> AsyncIterator[str]:
    async with stream:
        async for output in stream:
            yield output.text


@app.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    return msgspec.to_builtins(request.app.state.engine.stats())


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=8000)
