//! Work that waits for a turn: calls without a credit, credits that no response carried, deadlines,
//! and wakers that are called when nothing is borrowed.

use std::task::Waker;

use super::call_table::WakeTarget;
use super::held_permit::HeldPermit;
use super::{Driver, State, TimerTarget};
use crate::stream::wakers::wake_all;
use crate::transport::Transport;

/// Turns between two clock reads while deadlines are pending. A read costs about as much as an
/// empty poll, and a busy poller takes 64 turns in a few microseconds.
const TURNS_PER_CLOCK: u32 = 64;

impl<T: Transport> Driver<T> {
    pub(crate) fn wake_collected(&self) {
        let mut wakers = std::mem::take(&mut self.state.borrow_mut().wakers);
        wake_all(wakers.drain(..));
        let mut state = self.state.borrow_mut();
        if state.wakers.is_empty() {
            state.wakers = wakers;
        }
    }

    /// Makes this turn check the deadlines: its handlers took so long that some may have passed.
    pub(super) fn check_clock_in_this_turn(&self) {
        self.turns.set(TURNS_PER_CLOCK - 1);
    }

    #[cold]
    pub(super) fn retry_waiting(&self) {
        let turns = self.turns.get().wrapping_add(1);
        self.turns.set(turns);
        let mut state = self.state.borrow_mut();
        state.wake_waiters();
        if state.transfers.waiting() != 0 {
            drop(state);
            self.advance_transfers();
            state = self.state.borrow_mut();
        }
        state.send_owed_credits();
        let check_clock = turns.is_multiple_of(TURNS_PER_CLOCK) && state.awaits_time();
        state.flush();
        let any_woken = !state.wakers.is_empty();
        drop(state);
        if check_clock {
            self.expire_deadlines();
        }
        if any_woken || check_clock {
            self.wake_collected();
            // Responses of handlers that have expired, and calls of the tasks that were woken.
            self.state.borrow_mut().flush();
        }
    }

    /// Ends everything whose deadline has passed, and the connections that are old.
    pub(crate) fn expire_deadlines(&self) {
        let now = self.clock.now();
        loop {
            let mut borrowed = self.state.borrow_mut();
            let state = &mut *borrowed;
            let Some(target) = state.timers.pop_expired(now) else {
                break;
            };
            match target {
                TimerTarget::Call(key, call) => {
                    if let Some(link) = state.links.get_mut(key.index()) {
                        let waiting = link.calls.expire(call);
                        collect(
                            waiting,
                            self.block_on_waker.waker(),
                            &mut state.wakers,
                            &mut state.settled,
                        );
                    }
                }
                TimerTarget::Waiter(key, waiter) => {
                    let waker = state
                        .links
                        .get_mut(key.index())
                        .and_then(|link| link.waiters.expire(waiter));
                    state.wakers.extend(waker);
                }
                TimerTarget::Task(task) => {
                    drop(borrowed);
                    self.expire_task(task);
                }
                TimerTarget::Release(transfer) => {
                    drop(borrowed);
                    self.expire_release(transfer);
                }
                TimerTarget::Incoming(transfer) => {
                    drop(borrowed);
                    self.expire_incoming(transfer);
                }
                TimerTarget::Stream(stream) => {
                    drop(borrowed);
                    self.expire_stream(stream);
                }
            }
        }
        if self.state.borrow().connection_age.is_some() {
            self.on_idle(now);
        }
    }
}

impl<T: Transport> State<T> {
    /// Returns true if something is to be done at some time, whatever arrives.
    fn awaits_time(&self) -> bool {
        !self.timers.is_empty() || self.connection_age.is_some()
    }

    fn wake_waiters(&mut self) {
        let (links, wakers) = (&mut self.links, &mut self.wakers);
        self.waiting.retain(|key| {
            let Some(link) = links.get_mut(key.index()) else {
                return false;
            };
            // On a link that has ended or is about to, wake all waiters, so that they fail as never
            // sent.
            let room = if link.takes_no_calls() {
                u32::MAX
            } else {
                link.connection.requests_allowed()
            };
            link.waiters.wake_next(room, |waker| wakers.push(waker));
            !link.waiters.is_empty()
        });
    }
}

/// Records the target to notify of the end of a call, for when nothing is borrowed.
pub(super) fn collect(
    waiting: WakeTarget,
    block_on_waker: &Waker,
    wakers: &mut Vec<Waker>,
    settled: &mut Vec<HeldPermit>,
) {
    match waiting {
        // A stream is ended by itself.
        WakeTarget::None | WakeTarget::Stream(_) => {}
        WakeTarget::BlockOn => wakers.push(block_on_waker.clone()),
        WakeTarget::Task(waker) => wakers.push(waker),
        WakeTarget::Permit(permit) => settled.push(permit),
    }
}
