//! The forwarded calls of a seed: they begin with random orders, and are polled until they end.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_core::{CallError, MethodSpec, Request};
use rpc_transport_verbs::testing::simulation::{Pairing, ProcessId};

use super::conditions::Load;
use super::seed::Campaign;
use super::services::{ECHO, FAIL, HELD, Order, send};

pub(super) type Outcome = Result<Bytes, CallError>;

/// A call that may be forwarded.
pub(super) struct Call {
    pub(super) order: Order,
    pub(super) method: &'static MethodSpec,
    pub(super) client: usize,
    pub(super) route: Vec<usize>,
    /// The connection on which the call was started.
    pub(super) pairing: Pairing,
    pub(super) begun: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) future: Pin<Box<dyn Future<Output = Outcome>>>,
}

/// A call whose caller was told that it has not begun. It is checked again at the end.
pub(super) struct NotBegun {
    pub(super) id: u64,
    pub(super) hops: usize,
}

impl Campaign {
    pub(super) fn begin(&mut self, id: u64) {
        if self.random.happens(250) {
            return self.begin_mixed(id);
        }
        let random = &self.random;
        let route = match self.load {
            // The unfair client: the one of the first edge.
            Load::Overload(_) if random.happens(800) => vec![0],
            _ => self.topology.route(random),
        };
        let client = self.topology.edges[route[0]].0;
        let (Some(channel), Some(pairing)) =
            (self.services.channel(route[0]), self.pairings[route[0]])
        else {
            return;
        };
        let len = || {
            let short = match random.below(3) {
                0 => random.below(40),
                1 => random.below(600),
                // Messages of equal length that do not fit in the ring: if one overwrote another, it
                // would look right at first.
                _ => 400,
            };
            self.long.len(random).unwrap_or(short as u32)
        };
        let order = Order {
            id,
            response_len: len(),
            hops: route[1..].iter().map(|edge| *edge as u8).collect(),
            padding: len(),
        };
        let method = [&ECHO, &ECHO, &HELD, &FAIL][random.below(4) as usize];
        let mut request = Request::new(order.encode());
        let mut deadline = None;
        let needs_deadline = route.len() > 1 && self.topology.is_cyclic();
        let limited = match self.load {
            Load::None => 250,
            // Calls without deadlines are never refused.
            Load::Bearable(_) | Load::Overload(_) => 900,
        };
        if needs_deadline || random.happens(limited) {
            let most_us = if self.load == Load::None {
                2000
            } else {
                200_000
            };
            let timeout = Duration::from_micros(random.below(most_us));
            let at = self.world.clock().now() + timeout;
            request = request.with_deadline(at);
            deadline = Some(at);
            self.services.set_deadline(id, at);
        }
        let future = Box::pin(async move { send(&channel, method, request).await });
        self.calls.push(Call {
            order,
            method,
            client,
            route,
            pairing,
            begun: self.world.clock().now(),
            deadline,
            future,
        });
    }

    /// Polls each call, or the calls that `is_polled` picks, and judges the ones that end.
    pub(super) fn poll_calls(&mut self, is_polled: impl Fn() -> bool) {
        let mut index = 0;
        while let Some(call) = self.calls.get_mut(index) {
            if !is_polled() {
                index += 1;
                continue;
            }
            let mut cx = Context::from_waker(Waker::noop());
            let client = ProcessId::new(call.client);
            match self
                .world
                .run(client, |_| call.future.as_mut().poll(&mut cx))
            {
                Some(Poll::Ready(outcome)) => {
                    let call = self.calls.swap_remove(index);
                    self.judge(&call, &outcome);
                    self.world.drop_of(client, (outcome, call.future));
                }
                // If the process died in this poll, it is removed in the next round.
                Some(Poll::Pending) | None => index += 1,
            }
        }
    }
}
