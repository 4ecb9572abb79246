"""Makes llamacpp_token_ids.json: the ids that llama.cpp gives to the texts of token_texts.py.

    python -m venv llamacpp-env && llamacpp-env/bin/pip install xllamacpp gguf numpy
    llamacpp-env/bin/python tests/loading/make_llamacpp_token_ids.py \
        path/to/SmolLM2-135M-Instruct.Q4_1.gguf path/to/gemma-3-270m-q4_k_m.gguf

Control tokens that a text spells out count as tokens (llama.cpp's ``parse_special`` is true). Ids are without
beginning and end tokens (``add_special`` is false), except in columns "... with special".
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from pathlib import Path

import xllamacpp
from tiny_vocabularies import BYTE_LEVEL_KINDS, write_vocabulary
from token_texts import TEXTS


def token_ids(model: Path, add_special: bool = False) -> list[list[int]]:
    """Ids of every text from llama.cpp's own server."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 64
    params.n_parallel = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    return [_ask(server.listening_address, text, add_special) for text in TEXTS]


def _ask(address: str, text: str, add_special: bool) -> list[int]:
    body = json.dumps({"content": text, "add_special": add_special, "parse_special": True}).encode()
    request = urllib.request.Request(f"{address}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["tokens"]


def main(smollm2: Path, gemma3: Path) -> None:
    columns = {"SmolLM2": token_ids(smollm2)}
    columns["Gemma 3"] = token_ids(gemma3)
    columns["Gemma 3 with special"] = token_ids(gemma3, add_special=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in (*BYTE_LEVEL_KINDS, "spm"):
            columns[kind] = token_ids(write_vocabulary(Path(folder) / f"{kind}.gguf", kind))
        columns["spm with special"] = token_ids(Path(folder) / "spm.gguf", add_special=True)
        path = write_vocabulary(Path(folder) / "plain.gguf", "spm", add_space_prefix=False)
        columns["spm without prefix"] = token_ids(path)
    lines = [f"{json.dumps(name)}: {json.dumps(ids, separators=(',', ':'))}" for name, ids in columns.items()]
    Path(__file__).with_name("llamacpp_token_ids.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
