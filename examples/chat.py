"""Talk to a model in the terminal; an empty line, the end of the input or Ctrl-C ends the talk.

python examples/chat.py [model folder, .gguf file or installed name]
"""

import sys
from contextlib import suppress

import anyio
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from callboard import Engine, SamplingParams

PARAMS = SamplingParams(temperature=0.7, top_p=0.95, max_tokens=512, output_kind="cumulative")


def ask(console: Console) -> str:
    """What the user types; the end of the input is like an empty line."""
    try:
        return console.input("[bold cyan]you:[/] ")
    except EOFError:
        console.print()
        return ""


async def answer(engine: Engine, messages: list[dict[str, str]], console: Console) -> str:
    """Stream one answer; leaving the stream early aborts the request."""
    text = ""
    with Live(console=console, auto_refresh=False) as live:
        async with engine.chat(messages, PARAMS) as stream:
            async for output in stream:
                text = output.text
                live.update(Markdown(text), refresh=True)
    return text


async def main(model: str) -> None:
    console = Console()
    messages: list[dict[str, str]] = []
    loading = console.status(f"loading {model}")
    loading.start()
    async with Engine.from_pretrained(model) as engine:
        loading.stop()
        # Reading the keyboard blocks, so it happens in a thread: the engine's loop goes on.
        while question := await anyio.to_thread.run_sync(ask, console):
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": await answer(engine, messages, console)})
        console.print(f"[dim]{engine.stats().prefix_hits} prompt tokens came from the prefix cache[/]")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        anyio.run(main, *(sys.argv[1:] or ["smollm2"]))
