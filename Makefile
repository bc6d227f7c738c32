# make demo   train a small model with a NaN in it, and watch it live
# make test   everything the repository checks: lint, types, tests, the browser included
# make js     types and unit tests of the page's scripts alone (needs node and npm)
# make trackers   exports to TensorBoard, Weights & Biases and MLflow, with the real packages and MLflow's server
# make golden OLD=COMMIT   whether the same programs are recorded as by an older commit (an hour)
# make one_road   what recording costs in loops as people write them, trainers of others among them
# make ray   the recipe for Ray Train on a local cluster, with the real package (two to four minutes)
# make replicas   the store on replicated tables of ClickHouse, with a real ZooKeeper (Java; ten minutes)
# make dialect   the store's statements on today's ClickHouse, embedded in chdb (a gigabyte to install)
# make sentences   every sentence that users may read, with its place
# make capabilities   the tests that show the rows of docs/capabilities.md, and how many rows hold
# make faults   the tests that take too long for make test: faults and odd input by the thousand
# make soak   faults at random for half an hour, and what memory and descriptors do; SOAK_MINUTES=
# make detection   what is found in the fault bank, and what is said of healthy training (half an hour)
VENV ?= .venv
PYTHON ?= python3.11
BIN := $(VENV)/bin
SITE = $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What is imported is compiled then; to compile all 19,000 files takes half of the time of an installation.
INSTALL := install --quiet --no-compile
TORCH := torch==2.13.0
TRACKERS := $(VENV)/trackers
TRACKER_TESTS := tests/dashboard/export/trackers
FRAMEWORKS := $(VENV)/frameworks
RAY := $(VENV)/ray
RAY_TESTS := tests/integration/ray_cluster
# Chromium without a window of its own: it needs half the processor time of the one that hides its window.
BROWSER_PACKAGES := chromium-headless-shell fonts-dejavu-core
COMPILER_PACKAGES := gcc libc6-dev
NODE_PACKAGES := nodejs npm
CLICKHOUSE_PACKAGES := clickhouse-server
KEEPER_PACKAGES := libzookeeper-java default-jre-headless
# A file's tests stay together on one worker: they share what the file has trained, and its one Chromium. A worker
# waits for half of its time, for pages, programs and clocks: one more than there are processors, up to four.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); echo $$((n < 3 ? n + 1 : 4)))
KERNEL := $(addprefix probe/measure/kernels/,kernel.c passes.h sampled.h histograms.h gather.h hot.h hot_state.h hot_finish.h hot_forward.h hot_backward.h hot_gradients.h hot_ring.h hot_phases.h hot_updates.h hot_late.h errors.h calls.h call_columns.h call_methods.h compile.py)

# Or each of a dozen Pythons compiles anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test trackers_row others_row large fresh collected lint style types sentences js trackers golden one_road ray replicas dialect promtool capabilities faults soak detection packages browser clickhouse compiler node clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/dashboard demo

# Python's packages come beside Debian's; then parts of one process each, in two rows that take as long. mypy, which
# nothing waits for, has what the large part leaves of the processors.
test: compiler
	$(MAKE) --jobs=2 --output-sync=target $(VENV)/.dev packages
	$(MAKE) --jobs=2 --output-sync=recurse trackers_row others_row
	$(MAKE) --jobs=2 large types

large: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not fresh_process" -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		|| { test $$? = 1 && $(BIN)/python tests/once_more.py; }

trackers_row:
	@$(MAKE) --no-print-directory --jobs=1 trackers js 2>&1

others_row:
	@$(MAKE) --no-print-directory --jobs=1 style fresh collected 2>&1

# Memory of a process is followed best before it has loaded all test modules.
fresh: compiler $(VENV)/.dev
	$(BIN)/python -m pytest -m fresh_process -n0 tests/probe/memory

# Each worker imports all tests: what one process has compiled before, they read.
collected: $(VENV)/.dev
	@said=$$($(BIN)/python -m pytest --collect-only -qq -n0 2>&1) || { echo "$$said" | tail -n 60; exit 1; }

sentences:
	@$(PYTHON) tests/sentences.py

lint: style types

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# What the lock file names is installed once; tsc and node's own runner are all of it.
js: node
	@command -v npm >/dev/null || exit 0; cd tests/js; \
	if ! [ node_modules/.package-lock.json -nt package-lock.json ]; then npm ci --no-audit --no-fund --silent; fi; \
	npm run --silent types && npm test --silent

# Their requirements clash with our pins: they lie in front of our environment, and not in it.
$(TRACKERS)/.done: $(VENV)/.dev $(TRACKER_TESTS)/requirements.txt $(TRACKER_TESTS)/mlflow_server.txt
	$(PYTHON) -m venv --without-pip $(TRACKERS)
	echo "import site; site.addsitedir('$(SITE)')" \
		> "$$($(TRACKERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/behind.pth"
	$(PIP) --python $(TRACKERS)/bin/python $(INSTALL) --requirement $(TRACKER_TESTS)/requirements.txt
	rm -rf $(TRACKERS)/mlflow_server
	$(PIP) --python $(TRACKERS)/bin/python $(INSTALL) --no-deps \
		--target $(TRACKERS)/mlflow_server --requirement $(TRACKER_TESTS)/mlflow_server.txt
	touch $@

# Prometheus' own check of /metrics, out of Debian's package (19 MB), of which nothing is installed. Where it cannot be
# had, its tests skip and show the end of what this has written.
promtool: $(TRACKERS)/.done
	@if ! command -v promtool >/dev/null && ! [ -x $(TRACKERS)/bin/promtool ]; then (cd $(TRACKERS); exec >promtool.log 2>&1; \
		get() { timeout 60 apt-get -q -o Acquire::Retries=0 download prometheus; }; \
		get || { [ "$$(id -u)" = 0 ] && timeout 60 apt-get -qq update && get; } && \
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C bin --strip-components=3 ./usr/bin/promtool; \
		rm -f prometheus_*.deb); \
		[ -x $(TRACKERS)/bin/promtool ] || echo "promtool is missing: its tests skip. Why: $(TRACKERS)/promtool.log"; fi

trackers: $(TRACKERS)/.done promtool
	$(TRACKERS)/bin/python -m pytest -n0 $(TRACKER_TESTS) tests/dashboard/outlets/test_metrics.py tests/dashboard/outlets/test_otlp.py

# Trainers that people use, in front of our environment too.
$(FRAMEWORKS)/.done: $(VENV)/.dev tests/loops/requirements.txt
	$(PYTHON) -m venv --without-pip $(FRAMEWORKS)
	echo "import site; site.addsitedir('$(SITE)')" \
		> "$$($(FRAMEWORKS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/behind.pth"
	$(PIP) --python $(FRAMEWORKS)/bin/python $(INSTALL) --requirement tests/loops/requirements.txt
	touch $@

golden: $(FRAMEWORKS)/.done
	$(FRAMEWORKS)/bin/python tests/golden.py $(OLD) --setups --bank 20

one_road: $(FRAMEWORKS)/.done
	$(FRAMEWORKS)/bin/python tests/benchmarks/one_road.py

# It brings a protobuf and a pyarrow of its own, which lie in front of our environment too.
$(RAY)/.done: $(VENV)/.dev $(RAY_TESTS)/requirements.txt
	$(PYTHON) -m venv --without-pip $(RAY)
	echo "import site; site.addsitedir('$(SITE)')" \
		> "$$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/behind.pth"
	$(PIP) --python $(RAY)/bin/python $(INSTALL) --requirement $(RAY_TESTS)/requirements.txt
	touch $@

ray: $(RAY)/.done
	$(RAY)/bin/python -m pytest -n0 $(RAY_TESTS)

replicas: $(VENV)/.dev clickhouse
	@if [ -f /usr/share/java/zookeeper.jar ] && command -v java >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(KEEPER_PACKAGES) >/dev/null; \
	else echo "ZooKeeper is missing: sudo apt-get install --no-install-recommends $(KEEPER_PACKAGES)"; exit 1; fi
	$(BIN)/python -m pytest -m faults -n0 tests/dashboard/store/test_clickhouse_replicas.py
	$(BIN)/python -m pytest -n0 --store-engine replicas $(addprefix tests/dashboard/store/test_store_,delivery.py removal.py notes.py pooled.py runs.py)

# A gigabyte, which lies apart and is no part of `make test`.
$(VENV)/todays_clickhouse/chdb: $(VENV)/.dev
	$(PIP) $(INSTALL) --no-deps --target $(VENV)/todays_clickhouse chdb chdb-core
	touch $@

dialect: $(VENV)/todays_clickhouse/chdb
	PYTHONPATH=$(VENV)/todays_clickhouse $(BIN)/python -m pytest -n0 tests/dashboard/store/test_clickhouse_dialect.py

capabilities: $(TRACKERS)/.done browser
	$(TRACKERS)/bin/python -m pytest --capabilities -n $(WORKERS) --dist loadfile

# Inputs that follow coverage; where it cannot be had, its tests skip.
$(VENV)/.fuzz: $(VENV)/.dev
	@$(PIP) $(INSTALL) --constraint constraints.txt "atheris>=3.0" && touch $@ || echo "atheris is missing: fuzzing by coverage skips"

faults: $(VENV)/.fuzz
	$(BIN)/python -m pytest -m faults -n0 -s

soak: $(VENV)/.dev
	$(BIN)/python tests/benchmarks/soak.py

detection: $(VENV)/.dev
	$(BIN)/python tests/benchmarks/detection.py

# torch comes first and exactly: anything looser pulls several gigabytes of CUDA libraries. Before it comes today's pip,
# which needs a third of the time of Python 3.11's to find out what fits.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(INSTALL) --upgrade pip || true
	$(PIP) $(INSTALL) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml constraints.txt $(KERNEL)
	$(PIP) $(INSTALL) --constraint constraints.txt --editable '.[torch]'
	touch $@

# Programs that tests start import torch in less time; other programs of the environment do as ever.
$(VENV)/.dev: $(VENV)/.torch pyproject.toml constraints.txt $(KERNEL) tests/quick_start.py
	$(PIP) $(INSTALL) --constraint constraints.txt --editable '.[torch,dev]'
	cp tests/quick_start.py "$(SITE)"
	echo "import os; os.environ.get('TESTS_START_QUICKLY') and __import__('quick_start')" >"$(SITE)/quick_start.pth"
	touch $@ $(VENV)/.demo

# Of Debian's packages all that are missing at once; what that has not brought is tried, or told, one by one.
packages:
	@if [ "$$(id -u)" = 0 ]; then missing=""; \
		command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || missing="$(BROWSER_PACKAGES)"; \
		[ -x /usr/sbin/clickhouse-server ] || missing="$$missing $(CLICKHOUSE_PACKAGES)"; \
		command -v npm >/dev/null || missing="$$missing $(NODE_PACKAGES)"; \
		[ -z "$$missing" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } || true; fi
	@$(MAKE) --no-print-directory --jobs=1 browser clickhouse node

browser:
	@if command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(BROWSER_PACKAGES) >/dev/null; \
	else echo "Chromium is missing: the browser tests skip. To run them: sudo apt-get install $(BROWSER_PACKAGES)"; fi

# 80 MB, for the tests of the store in it, which run servers of their own; where it cannot be had, they skip.
clickhouse:
	@if command -v clickhouse-server >/dev/null || [ -x /usr/sbin/clickhouse-server ]; then :; \
	elif [ "$$(id -u)" = 0 ] && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(CLICKHOUSE_PACKAGES) >/dev/null; then :; \
	else echo "ClickHouse is missing: its tests skip. To run them: sudo apt-get install --no-install-recommends $(CLICKHOUSE_PACKAGES)"; fi

compiler:
	@if command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(COMPILER_PACKAGES) >/dev/null; \
	else echo "no C compiler: installed without the native kernel, whose tests skip. To have it: sudo apt-get install $(COMPILER_PACKAGES)"; fi

node:
	@if command -v node >/dev/null && command -v npm >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(NODE_PACKAGES) >/dev/null; \
	else echo "node or npm is missing: the page's scripts are not checked. To check them: sudo apt-get install $(NODE_PACKAGES)"; fi

clean:
	rm -f probe/measure/kernels/*.so
	rm -rf $(VENV) tests/js/node_modules dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
