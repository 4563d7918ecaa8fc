# Everything that is done with this workspace, by name. `make` alone says what there is.
# Settings (RDMA=1, DEVICE=mlx5_0) reach the scripts as environment variables, as make passes them on.
.DEFAULT_GOAL := help
.PHONY: help demo test setup test-rdma conformance bench bench-peers bench-rdma faults soak count fuzz

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Run the greeter as two processes, then the latency table
	@examples/demo

test: ## Run every check that needs no device, or with RDMA=1 all: what has to pass before a change goes in
	@.ci/test

setup: ## Install what the feature `rdma` and its tests need (Debian, Ubuntu; packages as root)
	@.ci/setup

test-rdma: ## Run the tests on Soft-RoCE in a guest, or with DEVICE=mlx5_0 on that device, with a report
	@.ci/test-rdma

conformance: ## Run the conformance suite on soft and on Soft-RoCE, and write its report (CASES=atomics runs some)
	@.ci/conformance $(CASES)

fuzz: ## Fuzz what peers can send, a minute for each target, or SECONDS_EACH=600 (needs cargo-fuzz)
	@.ci/fuzz

bench: ## Measure latency (both messages) and throughput
	@benches/bench

bench-peers: ## Measure beside tonic and UCX, in one table (builds tonic)
	@cargo run --release --quiet -p benches --features peers --bin peers

bench-rdma: ## Measure kernel verbs: on Soft-RoCE in a guest
	@benches/bench-rdma

soak: ## Kill, stop, starve and cut off real processes for ten minutes (SOAK_SECONDS, SOAK_SEED)
	@SOAK_SECONDS=$${SOAK_SECONDS:-600} cargo test --quiet -p examples --test soak -- --nocapture

faults: ## Run 10,000 seeds of calls on which things go wrong (SEEDS=n; SEED=n replays one)
	@SEEDS=$${SEEDS:-10000} cargo test --quiet --profile faults -p rpc-transport-verbs --features test-util --test faults

count: ## Count the instructions of a call under valgrind
	@benches/count
