//! Executes READs in place: copies straight from the peer's arena, which is mapped here, to the
//! local destination, once, without the peer's process having to run.
//!
//! The keys and queue pairs that a peer publishes say what may be read: see
//! [`Published`](crate::provider::soft::shared::published). If they permit a READ, the bytes are
//! copied, and then the records are read again. If the key or the queue pair has changed meanwhile,
//! the READ has not been made: the owner may have reused the memory during the copy.
//!
//! In every other case the peer has to execute the READ, as it executes WRITEs and atomics: `issue`
//! sends it a request. So the owner itself rejects what is not permitted, or not any more, and fails
//! its own queue pair as the specification says. That way also keeps the order: a READ waits for an
//! earlier WRITE, atomic, SEND with invalidate, or READ for the peer to execute, of the queue pair
//! that has not been acknowledged. The peer's death ends the requests that it has not executed.
//!
//! The memory of a process outlives it while it is mapped here. So a READ checks whether the peer
//! still runs, unless a READ of the queue pair has found it alive within [`ALIVE_TIME`]. The engine
//! notices the peer's end as well, as soon as it gets a core.
//!
//! Either way, a READ completes after all requests before it, and counts as outstanding until then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hooks;
use crate::provider::soft::context::link::{Link, Rings};
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::published::ReadRequest;
use crate::types::{Access, ReadExecution, RemoteMemory};

/// Time for which a READ assumes that a peer which was alive still is. The check polls the peer's
/// link, a system call that takes longer than a short READ.
const ALIVE_TIME: Duration = Duration::from_micros(20);

impl SoftQueuePair {
    /// Executes the READ with this number, unless the peer has begun to execute it. Returns false if the
    /// peer has to.
    pub(super) fn try_read_in_place(
        &mut self,
        common: &mut Common,
        number: u64,
        memory: RemoteMemory,
    ) -> bool {
        let send = self.initiator.sends.general_at(number);
        let Some(send) = send.filter(|send| send.slots.is_none()) else {
            return false;
        };
        let Link::Rings(Rings {
            sender: Some(sender),
            peer,
            read_arena,
            seen_alive,
            ..
        }) = &mut self.link
        else {
            return false;
        };
        if common.options.read_execution == ReadExecution::ByTarget
            || self.initiator.outstanding.unexecuted > 0
            || !sender.is_ready()
            || !is_alive(peer, seen_alive)
        {
            return false;
        }
        let Some(to) = self.core.attributes.dest_qp_num else {
            return false;
        };
        let (published, to_index) = sender.published();
        let request = ReadRequest {
            memory,
            len: send.total,
            outstanding: self.initiator.outstanding.reads + 1,
            from: self.core.number,
            to,
            to_index,
        };
        let Some(permission) = published.find(&request) else {
            return false;
        };
        if send.total > 0 {
            let cached = match &read_arena {
                Some((number, arena)) if *number == permission.arena => arena.upgrade(),
                _ => None,
            };
            let arena = match cached {
                Some(arena) => arena,
                // It may not have arrived yet.
                None => match peer.arena(permission.arena) {
                    Some(arena) => {
                        *read_arena = Some((permission.arena, Arc::downgrade(&arena)));
                        arena
                    }
                    None => return false,
                },
            };
            let Some(offset) = offset_within(&arena, permission.offset, send.total) else {
                return false;
            };
            let elements = send.elements();
            let needs = Access::LOCAL_WRITE;
            if common
                .memory
                .regions
                .check_all(elements, self.core.domain, needs)
                .is_err()
            {
                // The peer may reject the READ. If it does not, the local error is reported when
                // its response has arrived.
                return false;
            }
            // SAFETY: `offset_within` checked that all bytes of the READ are inside the mapping,
            // which `arena` keeps alive until the end of this block. The elements were just
            // checked, and deregistering them takes the context's owner word, which is held.
            unsafe { send.fill(arena.start().add(offset)) };
        }
        if !published.permits_after_copy(&request, &permission) {
            return false;
        }
        let next = sender.next();
        // It has taken no slot.
        self.initiator.begun(number, next..next);
        if let Some(send) = self.initiator.sends.general_at_mut(number) {
            (send.requested, send.received) = (send.total, send.total);
        }
        common.counters.reads_in_place += 1;
        true
    }
}

/// Returns true if the peer's process runs, or ran a moment ago.
fn is_alive(peer: &Peer, seen_alive: &mut Option<Instant>) -> bool {
    if peer.is_gone() {
        return false;
    }
    let now = hooks::now();
    if seen_alive.is_some_and(|seen| now.saturating_duration_since(seen) < ALIVE_TIME) {
        return true;
    }
    let is_alive = !peer.engine.has_ended();
    *seen_alive = is_alive.then_some(now);
    is_alive
}

/// Returns the offset if `len` bytes from there are inside the arena. Both are claims of the peer.
fn offset_within(arena: &Mapping, offset: u64, len: u64) -> Option<usize> {
    let end = offset.checked_add(len)?;
    let is_inside = end <= arena.len() as u64;
    is_inside.then(|| usize::try_from(offset).ok()).flatten()
}
