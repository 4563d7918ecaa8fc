//! Calls of all four kinds beside those that are forwarded: [`Mix`](rpc_core_testing::Mix) has their
//! handlers, and checks their messages.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rpc_core::{CallError, Cause, Code, Execution, MethodKind};
use rpc_core_testing::{Ending, MixCall, Order};
use rpc_transport_verbs::testing::simulation::{Pairing, ProcessId};

use super::conditions::Load;
use super::outcomes::{ROUNDED, is_of_memory};
use super::seed::Campaign;

/// Most bytes of a message that is to fit a slot.
const LONGEST: u32 = 600;
/// Least bytes of a message.
const LEAST: u32 = 12;
/// Most bytes of the long messages of a stream, if they are more than two.
const MOST_BYTES: u32 = 256 * 1024;

/// A call of any kind.
pub(crate) struct MixedCall {
    pub(crate) order: Order,
    client: usize,
    /// The connection on which the call was started.
    pairing: Pairing,
    begun: Instant,
    deadline: Option<Instant>,
    future: MixCall,
}

/// Indices of the outcomes.
const SUCCEEDED: usize = 9;
const FAILED: usize = 10;
const GIVEN_UP: usize = 11;
const DIED: usize = 12;
const LATE: usize = 13;
const DISCONNECTED: usize = 14;
const REFUSED: usize = 15;
const NO_MEMORY: usize = 19;

impl Campaign {
    pub(super) fn begin_mixed(&mut self, id: u64) {
        let random = &self.random;
        let edge = match self.load {
            // The unfair client: the one of the first edge.
            Load::Overload(_) if random.happens(800) => 0,
            _ => random.below(self.topology.edges.len() as u64) as usize,
        };
        let client = self.topology.edges[edge].0;
        let mut order = Order::random(random, id, LONGEST);
        let [request, response] = [self.long.len(random), self.long.len(random)];
        for len in [request, response].into_iter().flatten() {
            // Streams of the longest messages are short: seeds are to be quick.
            let most = (MOST_BYTES / (len + 1)).max(2);
            order.requests = order.requests.min(most);
            order.responses = order.responses.min(most);
        }
        order.request_len = request.unwrap_or(order.request_len).max(LEAST);
        order.response_len = response.unwrap_or(order.response_len).max(LEAST);
        if order.ending == Ending::Panics {
            // Its message would be printed.
            order.ending = Ending::Fails;
        }
        let (is_limited, most_us) = match self.load {
            Load::None => (250, 2000),
            // Calls without deadlines are never refused.
            Load::Bearable(_) | Load::Overload(_) => (900, 200_000),
        };
        let timeout = Duration::from_micros(random.below(most_us));
        let at = self.world.clock().now() + timeout;
        let deadline = random.happens(is_limited).then_some(at);
        let (Some(channel), Some(pairing)) = (self.services.channel(edge), self.pairings[edge])
        else {
            return;
        };
        let interceptors = self.mix.interceptors().into_iter();
        let channel = interceptors.fold(channel, |channel, each| channel.with_interceptor(each));
        let future = self.mix.call(channel, order.clone(), deadline);
        self.mixed.push(MixedCall {
            order,
            client,
            pairing,
            begun: self.world.clock().now(),
            deadline,
            future,
        });
    }

    /// Polls each call, or the calls that `is_polled` picks, and judges the ones that end.
    pub(super) fn poll_mixed(&mut self, is_polled: impl Fn() -> bool) {
        let mut index = 0;
        while let Some(call) = self.mixed.get_mut(index) {
            if !is_polled() {
                index += 1;
                continue;
            }
            let mut cx = Context::from_waker(Waker::noop());
            let client = ProcessId::new(call.client);
            let polled = self
                .world
                .run(client, |_| call.future.as_mut().poll(&mut cx));
            match polled {
                Some(Poll::Ready(outcome)) => {
                    let call = self.mixed.swap_remove(index);
                    self.judge_mixed(&call, &outcome);
                    self.world.drop_of(client, call.future);
                }
                // If the process died in this poll, it is removed in the next round.
                Some(Poll::Pending) | None => index += 1,
            }
        }
    }

    fn judge_mixed(&mut self, call: &MixedCall, outcome: &Result<(), CallError>) {
        let index = match self.mix.judge(&call.order, outcome) {
            Some(error) => self.judge_fault(call, error),
            None if outcome.is_ok() => SUCCEEDED,
            None => FAILED,
        };
        tracing::debug!(id = call.order.id, index, ?outcome, "ends");
        self.world.note(&[call.order.id, index as u64]);
        self.outcomes[index] += 1;
    }

    /// Checks that an error has a cause among the faults.
    fn judge_fault(&self, call: &MixedCall, error: &CallError) -> usize {
        let id = call.order.id;
        match (error.cause(), error.code()) {
            (_, Code::DeadlineExceeded) => {
                let at = call.deadline.map(|at| at - ROUNDED);
                let is_late = at.is_some_and(|at| at <= self.world.clock().now());
                assert!(is_late, "call {id} has time left: {error}");
                LATE
            }
            (Cause::Disconnected(_), _) => {
                let why = self.world.may_have_ended(&call.pairing);
                assert!(why, "call {id}: nothing has ended its connection: {error}");
                DISCONNECTED
            }
            (Cause::Remote(status) | Cause::NotReceived(status), _) if is_of_memory(status) => {
                let is_at_once = error.execution() == Execution::NotStarted;
                self.check_refusal(id, (!is_at_once).then_some(call.begun), error);
                NO_MEMORY
            }
            (Cause::Remote(_), Code::ResourceExhausted) => {
                let why = call.deadline.is_some() && self.load != Load::None;
                assert!(why, "call {id}: refused without a load: {error}");
                REFUSED
            }
            _ => panic!("call {id}: {error}, {:?}", call.order),
        }
    }

    /// Drops a call now and then.
    pub(super) fn give_one_mixed_up(&mut self) {
        if self.random.happens(60) && !self.mixed.is_empty() {
            let index = self.random.below(self.mixed.len() as u64) as usize;
            let call = self.mixed.swap_remove(index);
            self.drop_mixed(call);
        }
    }

    /// Drops the calls that end in no other way.
    pub(super) fn give_endless_up(&mut self) {
        self.give_up(|order| order.ending == Ending::Never);
    }

    /// Drops the bidirectional streams without a deadline. Returns their number.
    pub(super) fn give_streams_up(&mut self) -> usize {
        self.give_up(|order| order.kind == MethodKind::Streaming)
    }

    /// Drops the calls with such orders that have no deadline. Returns their number.
    fn give_up(&mut self, is_given_up: impl Fn(&Order) -> bool) -> usize {
        let is_it = |call: &mut MixedCall| call.deadline.is_none() && is_given_up(&call.order);
        let calls: Vec<_> = self.mixed.extract_if(.., is_it).collect();
        let count = calls.len();
        for call in calls {
            self.drop_mixed(call);
        }
        count
    }

    fn drop_mixed(&mut self, call: MixedCall) {
        self.world.drop_of(ProcessId::new(call.client), call.future);
        self.outcomes[GIVEN_UP] += 1;
    }

    /// Removes the calls of a process that has died.
    pub(super) fn remove_mixed_of(&mut self, process: usize) {
        let died = self
            .mixed
            .extract_if(.., |call| call.client == process)
            .collect::<Vec<_>>();
        self.outcomes[DIED] += died.len() as u64;
        self.world.drop_of(ProcessId::new(process), died);
    }
}
