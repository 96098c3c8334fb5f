# Everything here needs git, make, pip and some Python >= 3.12. Tools and dependencies go into $(VENV) and nowhere else.

VENV ?= .venv
PYTHON ?=
EXTRAS ?=
ARGS ?=
JOBS ?= 2
PROMPT ?= Explain in two sentences why the sky is blue.

# Taken letter for letter (make must not expand a $ in it) and handed over in the environment, never pasted into a shell.
override PROMPT := $(value PROMPT)
export PROMPT

python := $(VENV)/bin/python
created := $(VENV)/.created
comma := ,
# One empty file per set of extras says that pip has installed it: .installed-dev, .installed-gpu, .installed-none.
installed = $(VENV)/.installed-$(subst $(comma),-,$(or $(strip $(1)),none))

# Without EXTRAS only the CPU is installed for; saying so keeps a libtpu that the tests brought from looking for a TPU.
on_cpu := $(if $(strip $(EXTRAS)),,JAX_PLATFORMS="$${JAX_PLATFORMS:-cpu}")

# Two test processes compile for TPUs at once: without these the second finds libtpu locked, and both look for a TPU VM.
libtpu := ALLOW_MULTIPLE_LIBTPU_LOAD=1 TPU_SKIP_MDS_QUERY=1

.PHONY: help generate test lint format clean
.DEFAULT_GOAL := help

help: ## Say what the targets do
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s%s\n", $$1, $$2 }'
	@echo
	@echo '  PROMPT="text"     what generate answers          ARGS="--seed 1"   more flags for generate'
	@echo '  PYTHON=path       which Python makes the venv    VENV=dir          where the venv is ($(VENV))'
	@echo '  EXTRAS=gpu        what else pip installs         JOBS=2            parallel test processes'
	@echo '  TESTS="-k page"   which tests run, and any other flags of pytest'

generate: $(call installed,$(EXTRAS)) ## Answer PROMPT with SmolLM2-135M-Instruct (downloaded once)
	@$(call check_venv)
	@$(on_cpu) "$(python)" -m scripts.generate --chat --prompt="$$PROMPT" $(ARGS)

test: $(call installed,dev) $(if $(EXTRAS),$(call installed,$(EXTRAS))) ## Run every test that needs no GPU
	@$(call check_venv)
	@$(on_cpu) $(libtpu) "$(python)" -m pytest -n $(JOBS) --dist worksteal $(TESTS)

lint: $(call installed,dev) ## Check style and formatting with ruff
	@$(call check_venv)
	@"$(python)" -m ruff check .
	@"$(python)" -m ruff format --check .

format: $(call installed,dev) ## Rewrite the sources into the house format
	@$(call check_venv)
	@"$(python)" -m ruff check --fix .
	@"$(python)" -m ruff format .

clean: ## Delete the virtual environment, build outputs and caches
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

check_venv = "$(python)" -c "" 2>/dev/null \
	|| { echo "error: $(python) does not run; 'make clean' and try again" >&2; exit 1; }

# A virtual environment that something else left at $(VENV) is taken over when its Python fits, and never emptied.
$(created):
	@found=$$(sh tools/find_python.sh $(or $(wildcard $(python)),$(if $(PYTHON),"$(PYTHON)"))) || exit 1; \
	echo "Making $(VENV) with $$found" >&2; \
	"$$found" -m venv "$(VENV)" >&2 && touch $@

$(VENV)/.installed-%: $(created) pyproject.toml
	@$(call check_venv)
	@echo "Installing jaxattn into $(VENV), extras: $* (once; takes a few minutes)" >&2
	@"$(python)" -m pip install --disable-pip-version-check \
		-e ".$(if $(filter-out none,$*),[$(subst -,$(comma),$*)])" >&2
	@touch $@
