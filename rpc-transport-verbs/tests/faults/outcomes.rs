//! How calls may end: each outcome has to have a cause among the faults of the seed.

use std::time::{Duration, Instant};

use rpc_core::{CallError, Cause, Code, Execution, Status};
use rpc_transport_verbs::testing::simulation::ProcessId;

use super::calls::{Call, NotBegun, Outcome};
use super::conditions::Load;
use super::long::LONGEST_WAIT;
use super::seed::Campaign;
use super::services::FAIL;

/// The ways in which calls end, for the summary: by index.
pub(crate) const OUTCOMES: [&str; 21] = [
    "answered",
    "failed as asked",
    "given up by its caller",
    "died with its caller",
    "deadline passed, never sent",
    "deadline passed, may have run",
    "disconnected, never sent",
    "disconnected, may have run",
    "refused, not started",
    "of any kind: succeeded",
    "of any kind: failed as ordered",
    "of any kind: given up by its caller",
    "of any kind: died with its caller",
    "of any kind: deadline passed",
    "of any kind: disconnected",
    "of any kind: refused",
    "request refused, no memory",
    "response refused, no memory",
    "refused in a nested call, no memory",
    "of any kind: refused, no memory",
    "begins that let a call pass, each with one end",
];

/// The index of the begins of interceptors.
pub(super) const BEGINS: usize = OUTCOMES.len() - 1;

/// The time limit is transmitted in whole microseconds, rounded down.
pub(super) const ROUNDED: Duration = Duration::from_micros(1);

/// Returns true if a call was refused because there was no memory for its message, or because it could
/// not be read.
pub(super) fn is_of_memory(status: &Status) -> bool {
    let texts = ["no memory for a message", "did not begin to read a message"];
    texts.iter().any(|text| status.message().contains(text))
}

impl Campaign {
    /// Checks that a call ended correctly.
    pub(super) fn judge(&mut self, call: &Call, outcome: &Outcome) {
        let id = call.order.id;
        let runs = self.services.runs(id, call.order.hops.len());
        let index = match outcome {
            Ok(response) => {
                assert!(*call.method != FAIL, "call {id} was to fail");
                assert!(
                    *response == call.order.response(),
                    "call {id} got a wrong answer of {} bytes: {:?}",
                    response.len(),
                    &response[..response.len().min(20)]
                );
                assert_eq!(
                    runs, 1,
                    "call {id} was answered, and its handler ran {runs} times"
                );
                let [request, response] = [call.order.encode().len(), response.len()];
                let may_arrive = self.long.may_arrive(request.max(response));
                assert!(
                    may_arrive,
                    "call {id}: no memory for {request} or {response} bytes"
                );
                0
            }
            Err(error) => self.judge_error(call, error, runs),
        };
        tracing::debug!(id, outcome = OUTCOMES[index], ?outcome, "ends");
        self.world.note(&[id, index as u64]);
        self.outcomes[index] += 1;
    }

    fn judge_error(&mut self, call: &Call, error: &CallError, runs: u32) -> usize {
        let id = call.order.id;
        let is_late = call
            .deadline
            .is_some_and(|at| at <= self.world.clock().now());
        let never_sent = error.execution() == Execution::NeverSent;
        if never_sent || error.execution() == Execution::NotStarted {
            assert_eq!(
                runs, 0,
                "call {id} ran, and is said not to have begun: {error}"
            );
            let hops = call.order.hops.len();
            self.not_begun.push(NotBegun { id, hops });
        }
        match error.cause() {
            Cause::DeadlineExceeded { .. } => {
                assert!(is_late, "call {id} has time left: {error}");
                if never_sent { 4 } else { 5 }
            }
            Cause::Disconnected(_) => {
                let why = self.world.may_have_ended(&call.pairing);
                assert!(why, "call {id}: nothing has ended its connection: {error}");
                if never_sent { 6 } else { 7 }
            }
            Cause::Remote(status) => match status.code() {
                Code::Aborted => {
                    assert!(*call.method == FAIL, "call {id} was not to fail: {error}");
                    assert_eq!(runs, 1, "call {id}: {error}");
                    1
                }
                Code::DeadlineExceeded => {
                    let hops = call.route.len() as u32;
                    let at = call.deadline.map(|at| at - hops * ROUNDED);
                    let is_late = at.is_some_and(|at| at <= self.world.clock().now());
                    assert!(is_late, "call {id} has time left: {error}");
                    5
                }
                Code::Unavailable => {
                    let later_edges = &call.route[1..];
                    let why = later_edges
                        .iter()
                        .any(|edge| self.was_refused[*edge] || self.may_have_ended(*edge));
                    assert!(why, "call {id}: no connection onwards has ended: {error}");
                    7
                }
                Code::ResourceExhausted => {
                    let is_nested = call.route.len() > 1;
                    let is_refused = error.execution() == Execution::NotStarted;
                    assert!(is_refused || is_nested, "call {id}: {error}");
                    let is_of_load = call.deadline.is_some() && self.load != Load::None;
                    if is_refused && is_of_memory(status) {
                        self.check_refusal(id, None, error);
                        return 16;
                    }
                    if !is_refused && !is_of_load {
                        self.check_refusal(id, Some(call.begun), error);
                        return 18;
                    }
                    assert!(
                        is_of_load,
                        "call {id}: refused without a deadline or a load: {error}"
                    );
                    8
                }
                _ => panic!("call {id}: {error}"),
            },
            Cause::NotReceived(status) if is_of_memory(status) => {
                assert_eq!(runs, 1, "call {id}: {error}");
                self.check_refusal(id, Some(call.begun), error);
                17
            }
            _ => panic!("call {id}: {error}"),
        }
    }

    /// Checks that a message may have been refused because its receiver had no memory: at once, or, if
    /// the call began then, after it has waited.
    pub(super) fn check_refusal(&self, id: u64, begun: Option<Instant>, error: &CallError) {
        let may_be_short = self.long.memory_is_scarce();
        assert!(may_be_short, "call {id}: memory is not short: {error}");
        if self.long.waits_for_memory() {
            let waited = begun.map(|begun| self.world.clock().now() - begun);
            let has_waited = waited.is_some_and(|waited| waited >= LONGEST_WAIT);
            assert!(has_waited, "call {id} was refused at once: {error}");
        }
    }

    fn may_have_ended(&self, edge: usize) -> bool {
        let (client, server) = self.topology.edges[edge];
        self.history[edge]
            .iter()
            .any(|pairing| self.world.may_have_ended(pairing))
            || self.world.may_be_broken(ProcessId::new(client))
            || self.world.may_be_broken(ProcessId::new(server))
    }
}
