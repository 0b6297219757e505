# Everything that people and CI run. `make` lists the targets.
SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help
export CGO_ENABLED := 0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
TOOL := go tool -modfile=tools.mod
# contract builds programs of its own, and what is below e2e needs a host.
UNIT = $(shell go list ./... | grep -v -e '/e2e' -e '/contract$$')

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build microvmd, microvm and guestd into bin/
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/microvm ./cmd/microvmd
	go build -trimpath -tags guestd -ldflags '$(LDFLAGS)' -o bin/ ./cmd/guestd

.PHONY: up
up: build ## install, build and fetch what is missing, start a host, run a first sandbox
	bin/microvm up

.PHONY: down
down: build ## stop what `make up` started
	bin/microvm down

.PHONY: test
test: ## all tests; what CI runs
	@./hack/timed.sh check test-unit test-postgres test-contract test-e2e

.PHONY: check
check: ## format, lint, generated code, import rules, cross-build for arm64
	@./hack/check.sh

.PHONY: test-unit
test-unit: ## tests of each package; as root, on any Linux
	go test -count=1 -skip '^TestPostgres' $(UNIT)
	cd sdk/go && go test -count=1 ./...
	go test -count=1 ./e2e/soak

.PHONY: test-postgres
test-postgres: ## the store on Debian's PostgreSQL, which the tests start; as root
	@./hack/postgres.sh
	@mkdir -p bin
	@go test -count=1 -v -run '^TestPostgres' ./internal/sqlstore >bin/postgres.log || { cat bin/postgres.log; exit 1; }
	@grep '^--- PASS' bin/postgres.log || { echo 'postgres: ran no test' >&2; exit 1; }

.PHONY: test-contract
test-contract: ## the real microvmd, microvm and SDK above a fake VMM; as root
	@./hack/postgres.sh
	@mkdir -p bin
	@go test -count=1 -v ./contract >bin/contract.log || { cat bin/contract.log; exit 1; }
	@grep '^--- PASS' bin/contract.log || { echo 'contract: ran no test' >&2; exit 1; }

.PHONY: test-e2e
test-e2e: build ## boot real microVMs: on this machine with KVM, else in the emulated host
	@./e2e/run.sh

.PHONY: test-e2e-more
test-e2e-more: build ## the suites that make test has no time for: files, images, languages
	@./e2e/run.sh more

.PHONY: race
race: ## tests of each package under Go's race detector; wants a C compiler
	CGO_ENABLED=1 go test -race -count=1 -skip '^TestPostgres' ./internal/... ./cmd/...
	cd sdk/go && CGO_ENABLED=1 go test -race -count=1 ./...

.PHONY: soak
soak: build race ## the long soak: 100,000 operations on the fake host, 500 with 70 kills on real microVMs; and race
	MICROVM_SOAK_OPERATIONS=100000 go test -count=1 -timeout 30m ./e2e/soak
	@./e2e/run.sh soak

.PHONY: bench
bench: build ## measure each figure beside its floor
	@./e2e/run.sh bench

.PHONY: generate
generate: ## make generated code anew
	./api/generate.sh

.PHONY: format
format: ## format the Go code
	$(TOOL) gofumpt -w $$(git ls-files '*.go' | grep -v /gen/)

.PHONY: clean
clean: ## remove what was built here (not the cache, not a machine)
	rm -rf bin
