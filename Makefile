# Everything that is done with this repository. `make demo` and `make test` are all a newcomer needs.

PYTHON ?= python3
# Environments of their own for what pins its own versions of much: SGLang, and the trainers whose
# loaders read our exports in the tests.
VENV := .venv
SERVER_VENV := .venv-server
PEERS_VENV := .venv-peers
PACKAGES := contract store producer worker sglang_patch infra/local


.PHONY: help install peers demo test test-compose stress crash chaos soak drafter architectures check audit bench lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed $(SERVER_VENV)/.installed ## make both environments; leaves the command in .venv/bin/statetap

# Nothing but what the locks name, by version and hash. Torch comes last, with the needs of its build.
PIP_INSTALL := install --quiet --disable-pip-version-check
LOCKED := $(PIP_INSTALL) --no-deps --require-hashes

$(VENV)/.installed: requirements/main.lock requirements/torch.lock $(PACKAGES:=/pyproject.toml)
	$(PYTHON) -c 'import sys; sys.exit("statetap needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip $(LOCKED) -r requirements/main.lock
	$(VENV)/bin/pip $(PIP_INSTALL) -r requirements/torch.lock
	$(VENV)/bin/pip $(PIP_INSTALL) --no-deps --no-build-isolation $(addprefix -e ./,$(PACKAGES))
	touch $@

$(SERVER_VENV)/.installed: requirements/server.lock requirements/server-nodeps.lock requirements/torch.lock contract/pyproject.toml sglang_patch/pyproject.toml
	$(PYTHON) -m venv $(SERVER_VENV)
	$(SERVER_VENV)/bin/pip $(LOCKED) -r requirements/server.lock -r requirements/server-nodeps.lock
	$(SERVER_VENV)/bin/pip $(PIP_INSTALL) -r requirements/torch.lock
	$(SERVER_VENV)/bin/pip $(PIP_INSTALL) --no-deps --no-build-isolation -e ./contract -e ./sglang_patch
	touch $@

peers: $(PEERS_VENV)/.installed ## the environment in which the trainers' own loaders read exports

$(PEERS_VENV)/.installed: requirements/peers.lock requirements/peers-nodeps.lock requirements/torch.lock
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/pip $(LOCKED) -r requirements/peers.lock -r requirements/peers-nodeps.lock
	$(PEERS_VENV)/bin/pip $(PIP_INSTALL) -r requirements/torch.lock
	touch $@

demo: install ## extract the example dataset end to end; KEEP=1 leaves it running for a look at Flower
	$(VENV)/bin/python -m statetap_local.demo $(if $(KEEP),--keep)

test: install peers ## unit, integration and acceptance tests, the latter on a real SGLang server
	$(VENV)/bin/pytest

test-compose: install ## docker compose up for real, with everything killed in turn; Debian, as root
	infra/install-docker.sh
	$(VENV)/bin/pytest -s tests/compose --compose

stress: install ## 5,000 captures with everything at once on a real server; SEED=n for other requests
	$(VENV)/bin/pytest -s tests/acceptance/test_stress.py --stress-requests=5000 $(if $(SEED),--stress-seed=$(SEED))

crash: install ## 300 real kills, 2,000 kills and 2,000 power losses of a traced writer; SEED=n for others
	$(VENV)/bin/pytest -s tests/crash/test_killed_writer.py tests/crash/test_crash_states.py --crash-kills=300 --crash-states=2000 $(if $(SEED),--crash-seed=$(SEED))

chaos: install ## 20,000 samples, 300 kills of everything there is, then reconcile; SEED=n for the same again
	$(VENV)/bin/pytest -s tests/chaos/test_chaos.py --chaos-samples=20000 --chaos-kills=300 $(if $(SEED),--chaos-seed=$(SEED))

soak: install ## 37,312 samples, the size of a real job, through everything; SEED=n for other prompts
	$(VENV)/bin/pytest -s tests/acceptance/test_soak.py --soak-samples=37312 $(if $(SEED),--soak-seed=$(SEED))

drafter: demo ## train a drafter on the demo's samples, then on damaged ones, which must be worse
	PYTHONPATH=examples $(VENV)/bin/python -m train_drafter demo-run/runs/example --model .cache/models/SmolLM2-135M-Instruct --variants --seeds 3

architectures: install ## three choices of layers for each architecture; the tests have one
	$(VENV)/bin/pytest tests/acceptance/test_architectures.py --all-layers

check: install ## formatting, lint, types, import rules, duplicate names
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python infra/check_names.py $(PACKAGES)

audit: ## known vulnerabilities of the pinned dependencies; asks PyPI
	infra/audit.sh $(PYTHON)

bench: install ## the measurements behind the README's figures
	$(VENV)/bin/python benchmarks/capture_overhead.py
	$(VENV)/bin/python benchmarks/builtin_rows.py
	$(VENV)/bin/python benchmarks/builtin_cost.py
	$(VENV)/bin/python benchmarks/rounding.py
	$(VENV)/bin/python benchmarks/shard_write.py
	$(VENV)/bin/python benchmarks/shard_read.py
	$(VENV)/bin/python benchmarks/shard_scale.py
	$(VENV)/bin/python benchmarks/export_rate.py
	$(VENV)/bin/python benchmarks/plan_rate.py
	$(VENV)/bin/python benchmarks/enqueue_rate.py
	$(VENV)/bin/python benchmarks/reconcile_scale.py
	$(VENV)/bin/python benchmarks/report_scale.py
	$(VENV)/bin/python benchmarks/end_to_end.py
	$(VENV)/bin/python benchmarks/canary_drift.py
	$(VENV)/bin/python benchmarks/worker_overhead.py
	$(VENV)/bin/python benchmarks/redis_load.py

lock: ## resolve requirements/*.in anew into requirements/*.lock
	infra/lock.sh $(PYTHON)

clean: ## remove environments, caches and the demo's files
	rm -rf $(VENV) $(SERVER_VENV) $(PEERS_VENV) .cache demo-run
