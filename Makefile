# Everything that is done with this workspace, by name. `make` alone says what there is.
.DEFAULT_GOAL := help
.PHONY: help demo test bench bench-peers count

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Run the greeter as two processes, then the latency table
	@examples/demo

test: ## Run every check there is: what has to pass before a change goes in
	@.ci/test

bench: ## Measure latency (both messages) and throughput
	@benches/bench

bench-peers: ## Measure beside tonic and UCX, in one table (builds tonic)
	@cargo run --release --quiet -p benches --features peers --bin peers

count: ## Count the instructions of a call under valgrind
	@benches/count
