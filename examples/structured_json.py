"""A class in, an instance of it out: the class's JSON schema constrains the text.

python examples/structured_json.py ["a text to read"]
"""

import sys
from typing import Annotated, Literal, TypeVar

import anyio
import msgspec

from callboard import Engine, SamplingParams, StructuredOutput

T = TypeVar("T", bound=msgspec.Struct)
TEXT = "Ada, 36, from London, likes chess and long walks."


class Person(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=30)]
    age: Annotated[int, msgspec.Meta(ge=0, le=130)]
    mood: Literal["happy", "calm", "tired"]
    hobbies: Annotated[list[Annotated[str, msgspec.Meta(max_length=20)]], msgspec.Meta(max_length=3)]


async def ask(engine: Engine, kind: type[T], question: str) -> T:
    """An answer in the form of a class."""
    params = SamplingParams(
        temperature=0, max_tokens=200, structured_output=StructuredOutput(json_schema=msgspec.json.schema(kind))
    )
    messages = [{"role": "user", "content": f"{question}\nAnswer in JSON: {', '.join(kind.__struct_fields__)}."}]
    outputs = [output async for output in engine.chat(messages, params)]
    if (reason := outputs[-1].outputs[0].finish_reason) != "stop":  # by "length" it is the beginning of a valid text
        raise RuntimeError(f"the answer ended by {reason!r}: max_tokens is too small for it")
    return msgspec.json.decode("".join(output.text for output in outputs), type=kind)


async def main() -> None:
    text = sys.argv[1] if len(sys.argv) > 1 else TEXT
    async with Engine.from_pretrained("smollm2") as engine:
        print(await ask(engine, Person, f"Who is this? {text}"))


if __name__ == "__main__":
    anyio.run(main)
