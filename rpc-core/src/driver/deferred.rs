//! Work that waits for a turn: calls without a credit, credits that no response carried, deadlines,
//! and wakers that are called when nothing is borrowed.

use std::task::Waker;

use super::call_table::WakeTarget;
use super::held_permit::HeldPermit;
use super::{Driver, TimerTarget};
use crate::transport::Transport;

/// Turns between two clock reads while deadlines are pending. A read costs about as much as an
/// empty poll, and a busy poller takes 64 turns in a few microseconds.
const TURNS_PER_CLOCK: u32 = 64;

impl<T: Transport> Driver<T> {
    /// Makes this turn check the deadlines: its handlers took so long that some may have passed.
    pub(super) fn check_clock_in_this_turn(&self) {
        self.turns.set(TURNS_PER_CLOCK - 1);
    }

    #[cold]
    pub(super) fn retry_waiting(&self) {
        let turns = self.turns.get().wrapping_add(1);
        self.turns.set(turns);
        let mut state = self.state.borrow_mut();
        state.links.wake_waiters();
        let outbox = &state.links.outbox;
        if state.bodies.waiting() | outbox.pieces.len() | outbox.windows.len() != 0 {
            drop(state);
            self.advance_bodies();
            state = self.state.borrow_mut();
        }
        if !state.endings.is_empty() {
            drop(state);
            self.end_some();
            state = self.state.borrow_mut();
        }
        state.send_control_frames();
        let any_end = !state.endings.is_empty();
        state.links.outbox.note_what_is_left(any_end);
        let check_clock = turns.is_multiple_of(TURNS_PER_CLOCK) && state.links.awaits_time();
        state.links.flush();
        let any_woken = !state.links.wakers.is_empty();
        drop(state);
        if check_clock {
            self.expire_deadlines();
        }
        if any_woken || check_clock {
            self.wake_collected();
            // Responses of handlers that have expired, and calls of the tasks that were woken.
            self.state.borrow_mut().links.flush();
        }
    }

    /// Ends everything whose deadline has passed, and the connections that are old.
    pub(crate) fn expire_deadlines(&self) {
        let now = self.clock.now();
        loop {
            let mut borrowed = self.state.borrow_mut();
            let state = &mut *borrowed;
            let Some(target) = state.links.timers.pop_expired(now) else {
                break;
            };
            match target {
                TimerTarget::Call(key, call) => {
                    let waiting = state.links[key].calls.expire(call);
                    collect(
                        waiting,
                        self.block_on_waker.waker(),
                        &mut state.links.wakers,
                        &mut state.links.settled,
                    );
                }
                TimerTarget::Waiter(key, waiter) => {
                    let waker = state.links[key].waiters.expire(waiter);
                    state.links.wakers.extend(waker);
                }
                TimerTarget::Task(task) => {
                    drop(borrowed);
                    self.expire_task(task);
                }
                TimerTarget::Release(key) => {
                    state.bodies.sending.check_receiver(&mut state.links, key);
                }
                TimerTarget::Incoming(key) => {
                    let receiving = &mut state.bodies.receiving;
                    let completed = receiving.expire(&mut state.links, key, now);
                    drop(borrowed);
                    if let Some(completed) = completed {
                        self.conclude(completed);
                    }
                }
                TimerTarget::Stream(stream) => {
                    drop(borrowed);
                    self.expire_stream(stream);
                }
            }
        }
        if self.state.borrow().links.connection_age.is_some() {
            self.state.borrow_mut().on_idle(now);
        }
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
