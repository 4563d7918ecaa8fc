# All tasks of this workspace, by name. `make` without arguments lists them. Make passes settings
# such as RDMA=1 and DEVICE=mlx5_0 to the scripts as environment variables.
.DEFAULT_GOAL := help
.PHONY: help demo new check test nightly setup test-rdma bench count figures
.PHONY: conformance mutants judges interop interop-grpc faults soak attacks fuzz deny bench-compare bench-peers bench-rdma overload ratios curves

help: ## List these targets
	@awk -F ':.*## ' '/^# --/ { printf "\n%s\n", substr($$0, 6) } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Run the greeter as two processes, then measure what a call takes (TCP=1: over TCP, as between two hosts)
	@examples/demo

new: ## Write a crate of your own to start from, outside of this folder (NAME=../my-service; TOKIO=1: on tokio, with logs, metrics, a shutdown)
	@examples/new "$(NAME)" $(if $(TOKIO),--tokio)

check: ## Run the inner loop's checks: format, tidy, lints, unit tests of what has changed; seconds when warm
	@.ci/check

test: ## Run every check that needs no device, or all checks with RDMA=1; must pass before a merge (ONLY='checks tests conformance guest')
	@.ci/test $(ONLY)

setup: ## Install valgrind, cargo-deny, stock gRPC, what `rdma` and its tests need (Debian, Ubuntu; packages as root)
	@.ci/setup

test-rdma: ## Run the tests on Soft-RoCE in a guest, or on a device with a report (DEVICE=mlx5_0)
	@.ci/test-rdma

bench: ## Measure latency (both messages), throughput and streams
	@benches/bench

count: ## Count what a call costs under valgrind; fails if it costs more than accepted (ACCEPT=reason accepts it)
	@benches/count

figures: ## Print the figures of the source tree: lines, functions, asserts, circles, tests, documents
	@cargo run --quiet -p tidy

nightly: ## Run the long forms of all checks, before a release (ONLY='faults planted_faults mutants guest attacks instructions ratios fuzz soak newest gateway judges tls_judges builds advisories')
	@.ci/nightly $(ONLY)

# -- Single checks
conformance: ## Run the conformance suite on soft and Soft-RoCE and write its report (CASES=atomics selects cases)
	@.ci/conformance $(CASES)

mutants: ## Change the software device and the transport in a copy, fault by fault: the tests must see each (NAMES=part)
	@.ci/mutants $(NAMES)

judges: ## Run verbs programs of others (ibverbs-utils, perftest, pyverbs) over soft and tcp (ONLY='ibv_rc_pingpong tcp0')
	@.ci/judges $(ONLY)

interop: ## Run gRPC's interop cases, by name, over every device (one: VERBLINE_DEVICE=mlx5_0)
	@.ci/interop

interop-grpc: ## Call through the gateway with Python's and Node's gRPC, and grpcio's server with ours (ONLY='stock gateway back tool')
	@.ci/interop-grpc $(ONLY)

faults: ## Run 10,000 seeds of calls with injected faults (SEEDS=n; FIRST=n for fresh ones; SEED=n replays one)
	@.ci/faults

soak: ## Kill, stop, starve and disconnect real processes for ten minutes (SOAK_SECONDS, SOAK_SEED; HOSTS=2: over a bad network)
ifeq ($(HOSTS),2)
	@.ci/soak-hosts
else
	@.ci/nightly soak
endif

attacks: ## Attack a server as another user and as a hostile process of its own; needs root (NAMES='block slots', TCP=1, TLS=1)
	$(if $(filter-out 0 1,$(TCP)),$(error TCP=$(TCP): say TCP=1 to attack a server over TCP, and nothing or TCP=0 for shared memory))
	$(if $(filter-out 0 1,$(TLS)),$(error TLS=$(TLS): say TLS=1 to attack a server with TLS, and nothing or TLS=0 for one without))
	@cargo run --release --quiet -p attacks $(if $(filter 1,$(TLS)),--features tls) -- $(if $(filter 1,$(TLS)),--tls) $(if $(filter 1,$(TCP)),--device tcp) $(NAMES)

fuzz: ## Fuzz the input from peers, a minute for each target or SECONDS_EACH=600 (needs cargo-fuzz)
	@.ci/fuzz

deny: ## Check the dependencies against deny.toml: licences, sources, duplicates (needs cargo-deny)
	@.ci/deny

# -- Single measurements
bench-compare: ## Compare latency, throughput and streams with benches/baselines (WRITE=1 writes it); never fails on time
	@cargo run --release --quiet -p benches -- compare $(if $(WRITE),--write)

bench-peers: ## Compare with UCX, iceoryx2, tonic and a Unix socket, calls and uploads (builds two of them)
	@cargo run --release --quiet -p benches --features peers -- peers

bench-rdma: ## Measure kernel verbs on Soft-RoCE in a guest
	@benches/bench-rdma

overload: ## Measure the calls that are answered in time at 0.5 to 4 times the capacity (SPIN_US=50, CLIENT=local)
	@cargo run --release --quiet -p benches -- overload --spin-us $${SPIN_US:-1000} --client $${CLIENT:-shared}

ratios: ## Measure what 64 connections, 32 calls in flight and longer messages do to the rate; fails far below what is accepted
	@cargo run --release --quiet -p benches -- ratios

curves: ## Measure rate and latency against calls in flight, connections and size, and draw docs/pictures/curves-*.svg
	@cargo run --release --quiet -p benches -- curves --device soft
	@cp target/bench/curves-*-rate.svg target/bench/curves-*-latency.svg docs/pictures/
