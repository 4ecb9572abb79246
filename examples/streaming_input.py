"""A text that grows while it is served: sentences arrive one after another, the model remarks on each.

python examples/streaming_input.py [model folder, .gguf file or installed name]

A session keeps what is computed of its text, so an input costs little more than its own tokens,
however long the text is. The next sentence may be sent before the remark on the last has ended.
"""

import sys

import anyio

from callboard import Engine, SamplingParams

SENTENCES = [
    "It was a dark night, and the last train had left.\nRemark:",
    "\nA man with a red umbrella was waiting on the platform.\nRemark:",
    "\nAt midnight the station clock struck thirteen.\nRemark:",
]


async def main(model):
    async with Engine.from_pretrained(model) as engine:
        line_end = engine.tokenizer.encode("\n", add_special_tokens=False)
        params = SamplingParams(temperature=0, max_tokens=24, stop_token_ids=line_end)
        async with engine.open_session(params) as session:
            for sentence in SENTENCES:
                print(sentence, end="", flush=True)
                async for output in session.send(sentence):
                    print(output.text, end="", flush=True)
                usage = output.usage
                print(f"  [{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens were kept]", end="")
            print(f"\n{len(session.token_ids)} tokens in all")


if __name__ == "__main__":
    anyio.run(main, *(sys.argv[1:] or ["smollm2"]))
