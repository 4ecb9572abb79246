"""How sure the model is of each word, and what else it had in mind.

python examples/logprobs.py [model folder, .gguf file or installed name]

The same numbers of the prompt's own tokens tell how likely a text is; here the model says which of
two sentences it would rather have written.
"""

import math
import sys

import anyio

from callboard import Engine, SamplingParams

SENTENCES = "The sky is blue and the grass is green.", "The sky is blue and the grass is purple."


async def main(model):
    async with Engine.from_pretrained(model) as engine:
        params = SamplingParams(temperature=0, max_tokens=12, logprobs=3)
        final = await engine.complete("The capital of France is", params)
        for token, place in zip(final.outputs[0].token_ids, final.outputs[0].logprobs, strict=True):
            others = [f"{one.decoded_token!r} {math.exp(one.logprob):.0%}" for t, one in place.items() if t != token]
            chosen = place[token]
            print(f"{chosen.decoded_token!r:>12} {math.exp(chosen.logprob):4.0%}   rather than {', '.join(others)}")

        for sentence in SENTENCES:
            scored = await engine.complete(sentence, SamplingParams(max_tokens=1, prompt_logprobs=0))
            # The first token has no place before it; each place tells of its own token first.
            total = sum(next(iter(place.values())).logprob for place in scored.prompt_logprobs[1:])
            print(f"{total:8.2f}   {sentence}")


if __name__ == "__main__":
    anyio.run(main, *(sys.argv[1:] or ["smollm2"]))
