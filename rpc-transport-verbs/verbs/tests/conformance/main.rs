//! The conformance suite: a list of cases, each a named situation in the use of verbs. It runs on
//! the device that `VERBLINE_DEVICE` names and holds it to the specification.
//!
//! ```sh
//! make conformance                          # on soft here, on Soft-RoCE in the guest; writes CONFORMANCE.md
//! cargo test --test conformance             # on soft only
//! cargo test --test conformance -- atomics  # the cases and topics whose names contain this
//! SEED=17 cargo test --test conformance -- walk
//! SHARED_RECEIVES=oldest cargo test --test conformance   # see `SoftOptions::shared_receive_order`
//! READS=target cargo test --test conformance             # see `SoftOptions::read_execution`
//! RECORDS=tls VERBLINE_DEVICE=tcp cargo test --features test-util --test conformance     # over TLS
//! ```
//!
//! A case passes, deviates or is not supported; any other outcome is a failure:
//!
//! * **pass**: the device did what the specification says;
//! * **deviation**: it did exactly what [`deviations`] says instead. A deviation that no longer
//!   occurs is a failure, so that no deviation outlives its reason;
//! * **not supported**: an attribute of the device says so, or [`deviations`] does, with evidence;
//! * **differs**: a network card did something else, and no card was tried. The run lists these cases
//!   at its end and asks for the report. What is published about cards ([`cards`]) is a deviation
//!   where it occurs, and a case that hangs does not end the run.
//!
//! `soft` has to pass every case. `CONFORMANCE.md` has a row for each case and a column for each
//! device, and CI compares it with the actual results.
//!
//! Many situations and their expected statuses are taken from google/rdma-unit-test (Apache License
//! 2.0), whose names are listed with the cases; the code is our own. [`rdma_unit_test`] lists all
//! of its cases, with a reason for each case that has no counterpart here.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that is run by a person"
)]

mod cards;
mod case;
mod deviations;
mod device;
mod differences;
mod rdma_unit_test;
mod report;
mod run;
mod seed;
mod trials;
#[path = "../verbs_side/mod.rs"]
mod verbs_side;

mod async_events;
mod atomics;
mod boundaries;
mod channels;
mod completion_queues;
mod datagram_crowds;
mod datagrams;
mod devices_ports;
mod end;
mod errors;
mod extended;
mod flipped_bits;
mod inline_messages;
mod inline_sge;
mod lengths;
mod memory_ends;
mod memory_regions;
mod memory_windows;
mod model;
mod multicast;
mod objects;
mod one_sided;
mod one_sided_processes;
mod orders;
mod ownership;
mod processes;
mod protection;
mod protection_local;
mod queue_pairs;
mod receive_queue;
mod refusals;
mod resets;
mod rnr;
mod rounds;
mod send_queue;
mod silence;
mod solicited;
mod srq;
mod srq_shares;
mod state_rules;
mod states;
mod threads;
mod through_windows;
mod unreliable_connections;
mod unreliable_falls;
mod unreliable_queues;
mod unreliable_side;
mod unreliable_states;
mod walk;
mod window_bindings;
mod window_readers;

use std::process::ExitCode;

use case::Section;

/// The topics, in the order of the report.
const SECTIONS: &[Section] = &[
    devices_ports::CASES,
    objects::CASES,
    memory_regions::CASES,
    ownership::CASES,
    queue_pairs::CASES,
    states::CASES,
    state_rules::CASES,
    resets::CASES,
    extended::CASES,
    send_queue::CASES,
    inline_messages::CASES,
    inline_sge::CASES,
    receive_queue::CASES,
    one_sided::CASES,
    atomics::CASES,
    boundaries::CASES,
    orders::CASES,
    memory_windows::CASES,
    window_bindings::CASES,
    through_windows::CASES,
    window_readers::CASES,
    protection::CASES,
    protection_local::CASES,
    flipped_bits::CASES,
    memory_ends::CASES,
    refusals::CASES,
    errors::CASES,
    rnr::CASES,
    silence::CASES,
    completion_queues::CASES,
    channels::CASES,
    solicited::CASES,
    srq::CASES,
    srq_shares::CASES,
    async_events::CASES,
    unreliable_states::CASES,
    unreliable_falls::CASES,
    unreliable_queues::CASES,
    unreliable_connections::CASES,
    datagrams::CASES,
    datagram_crowds::CASES,
    multicast::CASES,
    threads::CASES,
    processes::CASES,
    one_sided_processes::CASES,
    walk::CASES,
];

fn main() -> ExitCode {
    if processes::is_peer() {
        return processes::run_peer();
    }
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--render") {
        return report::render(&arguments[1..]);
    }
    let mut results = None;
    if let Some(at) = arguments
        .iter()
        .position(|argument| argument == "--results")
    {
        arguments.remove(at);
        results = (at < arguments.len()).then(|| arguments.remove(at));
    }
    // Options for other test programs (`--nocapture`) are ignored here.
    arguments.retain(|argument| !argument.starts_with("--"));
    run::run(&arguments, results.as_deref())
}
