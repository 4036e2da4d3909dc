# Needs Python >= 3.11 and make. Everything else is set up in .venv at the first call, and kept in step with uv.lock.

PY := .venv/bin/python
# Half as many tests again as there are cores at once: many wait for a program or a server that they have started.
WORKERS = $(shell $(PY) -c 'import os; print(max(2, min(8, len(os.sched_getaffinity(0)) * 3 // 2)))')
READY := .venv/.ready

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
unexport VIRTUAL_ENV
unexport PYTHONHOME
unexport PYTHONPATH
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check format lint types mypy pyright layers fmt setup recordings programs servers test-stack boards ui ui-test redis-faults spawn-guards coexistence mcp frameworks providers newest pythons house coverage mutants names dashboards pictures clean FORCE
.DEFAULT_GOAL := help

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: $(READY)  ## a support desk on a scripted model: watched, warned, and stopped at its budget
	@$(PY) -m ravi_otel demo

test: $(READY)  ## every test, on every core
	@sh scripts/servers.sh
	@$(PY) -m pytest -q -n $(WORKERS) --dist worksteal

check: format lint types layers  ## format, lint, types and layers

format: $(READY)
	@$(PY) -m ruff format --check .

lint: $(READY)
	@$(PY) -m ruff check .

types: mypy pyright

mypy: $(READY)
	@$(PY) -m mypy

pyright: $(READY)
	@$(PY) -m pyright --pythonpath $(PY)

layers: $(READY)
	@.venv/bin/lint-imports --no-logo

fmt: $(READY)  ## format, and mend what the linter can
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

recordings: $(READY)  ## replay recorded exchanges and print what was told against what was sent
	@$(PY) tests/recordings/table.py

programs: $(READY)  ## launch programs of every kind and print what becomes of them
	@$(PY) tests/launch/programs_table.py
	@RAVI_LONG=1 $(PY) -m pytest -q -n $(WORKERS) tests/launch/test_limits_hold.py

servers: $(READY)  ## find or build every server that tests run: Redis, collector, Prometheus, Alertmanager, Jaeger, Loki
	@sh scripts/servers.sh
	@sh scripts/stack_servers.sh

test-stack: servers  ## the stack's tests, against the real servers
	@$(PY) -m pytest -q -n 0 --timeout 300 tests/stack/live

boards: servers  ## draw the dashboards with Grafana's own packages over six minutes of work, check every panel, and keep their pictures
	@sh scripts/boards.sh
	@$(PY) -m pytest -q -n 0 --timeout 1200 tests/stack/boards

ui: $(READY)  ## build the page of `ravi-otel ui` from ui/ into ravi_otel/_ui/static, and print its size
	@sh scripts/ui.sh

ui-test: $(READY)  ## the page in a real browser, at a desk and on a phone, in both themes
	@sh scripts/browser.sh
	@sh scripts/ui.sh --check
	@$(PY) -m pytest -q -n $(WORKERS) --timeout 300 tests/ui/browser tests/ui/test_safety.py

redis-faults: $(READY)  ## pause, kill, empty and fail over real Redis servers, and print what became of the counts
	@sh scripts/servers.sh
	@$(PY) tests/enforcement/ledger/redis_faults.py

spawn-guards: $(READY)  ## walk through every state of small runs' slots, and take the guards of their source away one by one
	@$(PY) tests/enforcement/spawn_states.py
	@$(PY) tests/enforcement/spawn_guards.py

house: $(READY)  ## what each room holds, and how much of it a call, a tool and a spawn enter, beside the goals
	@$(PY) scripts/house.py

coverage: $(READY)  ## branch coverage room by room, of every test (slow) or of TESTS=tests/policy; MISSED=1 lists the rest
	@sh scripts/servers.sh
	@$(PY) scripts/branches.py --workers $(WORKERS) $(if $(MISSED),--missed) $(TESTS)

mutants: $(READY)  ## change the judge, the plan and the estimate line by line, and print which changes no test sees (slow)
	@$(PY) scripts/mutants.py

names: $(READY)  ## write what is made from code: every name, the schema of policy files, and what each method yields
	@$(PY) tests/telemetry/names_page.py
	@$(PY) tests/runtime/policy_schema.py
	@RAVI_WRITE=1 $(PY) -m pytest -q tests/instrumentation/no_harm/test_coverage_table.py

dashboards: $(READY)  ## write the dashboards and the runbooks' pages from their source
	@$(PY) -m dashboards.source

pictures: $(READY)  ## take every picture of the docs from what really runs: KINDS="page terminal incident dashboards", or some of them
	@sh scripts/pictures.sh $(or $(KINDS),page terminal incident dashboards)

coexistence: $(READY)  ## run beside other instrumentations of the client, in an environment of their own
	@sh scripts/coexistence.sh

mcp: $(READY)  ## call tools over the official MCP SDK in its versions before 2, in an environment of their own
	@sh scripts/mcp.sh

frameworks: $(READY)  ## run agents of other frameworks under the launcher, and print what was sent, allowed and counted
	@sh scripts/frameworks.sh

providers: $(READY)  ## hold the real google-genai, boto3, mistralai, cohere, ollama and LiteLLM to limits, and print what was seen of each
	@sh scripts/providers.sh

newest: $(READY)  ## the same with the newest release of each of them; what fails is printed, and stops nothing
	-@NEWEST=1 sh scripts/providers.sh

pythons:  ## the tests on CPython 3.13 and 3.14 with Redis 8, in root folders made of Debian's packages (as root, SUITES=trixie or sid for one)
	@sh scripts/pythons.sh $(SUITES)

setup: $(READY)  ## make .venv, nothing more

clean:  ## remove all that was made here
	rm -rf mutants .venv .venv-oldest .venv-coexistence .venv-mcp .venv-frameworks .venv-providers .venv-newest dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that was moved here with its tree, or whose Python has gone, is made anew.
ifneq ($(shell test -x $(PY) && cat $(READY) 2>/dev/null),$(CURDIR))
$(READY): FORCE
endif

$(READY): uv.lock pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh "$(CURDIR)"
