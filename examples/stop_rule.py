"""A stop rule of one's own: three items of a list are enough.

python examples/stop_rule.py [model folder, .gguf file or installed name]

A rule sees a request's tokens as they come, and ends it at the one that completes what the rule
looks for. It sees tokens and not text, so here it counts those that end a line.
"""

import sys

import anyio

from callboard import Engine, SamplingParams
from callboard.scheduler import Finished, FinishReason

QUESTION = "List ten fruits, one on each line."


class EnoughLines:
    """Ends requests that are called a list with their third line."""

    def __init__(self, most):
        self.most = most
        self.line_ends = set()

    def applies_to(self, request):
        return request.request_id.startswith("list")  # other requests cost nothing

    def check(self, _request, output_token_ids):
        if int(output_token_ids[-1]) not in self.line_ends:
            return None
        lines = sum(token in self.line_ends for token in output_token_ids.tolist())
        return Finished(reason=FinishReason.STOP, stop_reason=f"{lines} lines") if lines == self.most else None


async def main(model):
    rule = EnoughLines(3)
    engine = Engine.from_pretrained(model, stop_rules=[rule])
    async with engine:
        rule.line_ends.update(engine.tokenizer.encode("\n", add_special_tokens=False))
        params = SamplingParams(temperature=0, max_tokens=128)
        async for output in engine.chat([{"role": "user", "content": QUESTION}], params, request_id="list of fruits"):
            print(output.text, end="", flush=True)
    print(f"ended by: {output.outputs[0].stop_reason}")


if __name__ == "__main__":
    anyio.run(main, *(sys.argv[1:] or ["smollm2"]))
