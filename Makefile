# What people run, and what continuous integration runs: the same. GNU make 3.81 or newer, Go, and a C compiler for the
# race detector.

SHELL := /bin/bash
GO    ?= go

# Versions of tools that are run from their modules, so that they are no requirement of this one.
GOLANGCI_LINT ?= $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# It builds images; shared/deploy has its version too, and .ko.yaml says how.
KO ?= $(GO) run github.com/google/ko@v0.19.1

# The command that runs tests. Another one may report differently; it takes the same arguments.
GOTEST ?= $(GO) test

# How long each fuzz target runs, how often the chaos test kills the server, which seeds are simulated, and how many runs
# are live when a leader is killed.
FUZZTIME ?= 60s
ROUNDS   ?= 30
SEED     ?= $(shell date +%s)
SEEDS    ?= 2000
RUNS     ?= 10000

# Import paths of the commands that have an image. Those below shared/ are parts of tests.
commands = $$($(GO) list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' ./... | grep -v /shared/)

# Where images are built to, and, when they are pushed, what they are tagged with and where their references are written.
IMAGES ?= bin/images
TAGS   ?= latest
REFS   ?= bin/images.txt

# A program that checks a Terraform root module without a cloud, and is called with the folder and --apply. With a plan in
# the file that TFCHECK_PLAN names, the tests of the plan look at it.
TFCHECK ?=

# Folder and name of each fuzz target. Looking for them is much quicker than asking each test binary.
fuzz_targets = grep -rno --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed -E 's|^(.*)/[^/]*:[0-9]+:func (.*)$$|\1 \2|' | sort

.DEFAULT_GOAL := help
.PHONY: help build run test race sim mutations fuzz chaos takeover cloud bench cost images publish terraform lint format generate current vet verify clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build every command into bin/
	$(GO) build -o bin/ ./...

run: ## Run the worked example on this machine
	$(GO) run . dev -f examples/invoices

vet:
	$(GO) vet ./...

test: vet ## Vet, then run every test with the race detector
	$(GOTEST) -race -timeout 10m ./...

race: ## Run every test three times with the race detector, in random order
	$(GOTEST) -race -timeout 30m -count 3 -shuffle on ./...

sim: ## Simulate SEEDS=2000 seeds from SEED on, and check every write
	ERRAND_SIM_SEED=$(SEED) ERRAND_SIM_SEEDS=$(SEEDS) $(GO) test -count 1 -timeout 60m -run TestSeeds -v ./shared/sim

mutations: ## Break the control plane in each way of a table, and see that seeds find it
	ERRAND_SIM_MUTATIONS=$(or $(ONLY),all) $(GO) test -count 1 -timeout 90m -run 'TestMutations$$' -v ./shared/sim

fuzz: ## Fuzz each decoder in turn, FUZZTIME=60s each
	@# Go ends a run now and then with an expired context when its time is over, having found nothing: that is no fault.
	@set -euo pipefail; \
	targets=$$($(fuzz_targets)); log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	while read -r folder target; do \
		echo "fuzz $$folder $$target for $(FUZZTIME)"; \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x "$$folder" 2>&1 | tee "$$log" || \
			{ grep -q '^    context deadline exceeded$$' "$$log" && ! grep -q 'Failing input' "$$log"; } || exit 1; \
	done <<<"$$targets"

chaos: ## Kill the server ROUNDS=30 times under load, and look for what was lost or done twice; then in the cloud in a box
	ERRAND_CHAOS_ROUNDS=$(ROUNDS) $(GO) test -count 1 -timeout 60m -run Chaos -v ./shared/chaos
	ERRAND_CHAOS_ROUNDS=$(ROUNDS) ERRAND_CHAOS_SEED=$(SEED) $(GO) test -count 1 -timeout 60m -run Chaos -v ./shared/cloudbox

takeover: ## Kill the leader ROUNDS=30 times over RUNS=10000 live runs in the cloud in a box, and time who follows
	ERRAND_TAKEOVER_ROUNDS=$(ROUNDS) ERRAND_TAKEOVER_RUNS=$(RUNS) $(GO) test -count 1 -timeout 60m -run TakeOver -v ./shared/cloudbox

cloud: ## Run the cloud deployment on this machine and compare it with a laptop, on INVOICES=folder of documents
	ERRAND_INVOICES=$(if $(INVOICES),$(abspath $(INVOICES))) $(GO) test -count 1 -timeout 30m -v ./shared/cloudbox

bench: ## Measure: benchmarks of packages, then the whole by `errand bench`
	$(GO) test -run '^$$' -bench . -benchmem ./...
	$(GO) run . bench

cost: ## Count what a run takes and is billed against docs/cost.tsv and cost.md; RECORD=1 records it
	ERRAND_COST=$(if $(RECORD),record,check) $(GO) test -count 1 -v -run TestCost ./shared/cost

images: ## Build the image of every command without a network, and see each start
	ERRAND_IMAGES=$(IMAGES) $(GO) test -count 1 -timeout 30m -v -run TestImages ./shared/deploy

publish: ## Build the image of every command and push it to KO_DOCKER_REPO, with an SBOM
	@: "$${KO_DOCKER_REPO:?name the repository to push to}"; mkdir -p "$(dir $(REFS))"
	$(KO) build --base-import-paths --sbom spdx --tags $(TAGS) --image-refs $(REFS) $(commands)

terraform: ## Check terraform/: with TFCHECK=PROGRAM down to a plan and an apply, else format, validity and its tests
ifneq ($(TFCHECK),)
	@set -euo pipefail; plan=$$(mktemp); trap 'rm -f "$$plan"' EXIT; \
	TFCHECK_PLAN=$$plan $(TFCHECK) terraform --apply; \
	TFCHECK_PLAN_JSON=$$plan $(GO) test -count 1 -v -run TestPlan ./shared/deploy
else
	terraform -chdir=terraform fmt -check -recursive
	terraform -chdir=terraform init -backend=false -input=false
	terraform -chdir=terraform validate
	terraform -chdir=terraform test
endif

lint: ## Check the format, then look for mistakes
	@set -euo pipefail; files=$$(gofmt -l .); \
	if [ -n "$$files" ]; then echo "not formatted; run make format:"; echo "$$files"; exit 1; fi
	$(GOLANGCI_LINT) run

format: ## Format all Go code
	gofmt -w .

generate: ## Write what is generated: docs/states.md, the indexes of Firestore
	$(GO) generate ./...

current: ## Fail if a generated file is not what its source says
	@set -euo pipefail; \
	before=$$(git diff | cksum); \
	$(MAKE) --no-print-directory generate; \
	if [ "$$before" != "$$(git diff | cksum)" ]; then \
		echo "make generate changes files: commit what it writes"; git diff --stat; exit 1; \
	fi

verify: lint current test cost fuzz ## Everything that continuous integration asks for

clean: ## Remove what was built
	rm -rf bin
