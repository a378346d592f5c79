# `make demo` and `make test` do all the set-up they need in .venv; nothing outside this folder changes.

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

CORE := $(VENV)/.joulecast-core
FULL := $(VENV)/.joulecast-full

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check format coverage calibrate validation study benchmarks loop campaign-quick clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	sh scripts/make_venv.sh $(VENV)

$(CORE): $(INPUTS) | $(BIN)/python
	@echo "installing joulecast and its light core into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(FULL): $(INPUTS) | $(BIN)/python
	@echo "installing joulecast with all extras into $(VENV); torch is large, the first time takes minutes"
	@$(PIP) --editable '.[torch,measure,postgresql,data,dask,figures,dev]'
	@touch $@ $(CORE)

demo: $(CORE)  ## predict the six models of the study on an A100 40 GB in three precisions
	$(BIN)/joulecast predict resnet50 vgg16 bert-base distilbert albert \
	    --gpu a100-sxm4-40gb --precision fp32,tf32,bf16 --batch-size 32
	$(BIN)/joulecast predict tinyllama --gpu a100-sxm4-40gb --precision fp32,tf32,bf16 --batch-size 2

test: $(FULL)  ## run every test
	$(BIN)/python -m pytest

test-fast: $(FULL)  ## run the tests that take seconds
	$(BIN)/python -m pytest -m "not slow"

check: $(FULL)  ## formatting, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(FULL)  ## rewrite the sources as `check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

coverage: $(FULL)  ## run every test and show what they leave out
	$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered

calibrate: $(FULL)  ## fit the shipped parameters to ../shared/data; write the set and docs/data/held_out.csv
	$(BIN)/python -m joulecast.calibrate.fit --data ../shared/data \
	    --out src/joulecast/model/fitted/default.toml --held-out docs/data/held_out.csv

validation: $(FULL)  ## predict every public measurement; write docs/validation.md and the README's table
	$(BIN)/python scripts/write_validation

study: $(FULL)  ## predict the study's six models; write docs/study.md
	$(BIN)/python scripts/write_study

benchmarks: $(FULL)  ## speed of predict, trace and sweep
	$(BIN)/python benchmarks/predict_process.py
	$(BIN)/python benchmarks/trace_overhead.py
	$(BIN)/python benchmarks/trace_llama.py
	$(BIN)/python benchmarks/sweep_rate.py
	$(BIN)/python benchmarks/objective.py ../shared/data/ops.parquet

loop: $(FULL)  ## on this processor: time operators, calibrate, predict 16 training steps, run them, compare
	$(BIN)/python scripts/loop --docs

campaign-quick: $(FULL)  ## the GPU campaign's short form, on this processor
	$(BIN)/python scripts/gpu_campaign --quick

clean:  ## remove the environment and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist
