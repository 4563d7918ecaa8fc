//! Brings the bytes of READs and atomics.
//!
//! **Responses.** The response to a READ or an atomic is written into the request's own slot before
//! that slot is acknowledged. A longer result goes through the staging memory behind the ring, 64 KiB
//! at a time, with four pieces in flight.
//!
//! **In place.** A READ may be copied straight from the peer's arena, which is mapped here, to the local
//! destination, once, without the peer's process having to run.
//!
//! The keys and queue pairs that a peer publishes say what may be read: see
//! [`Published`](crate::provider::soft::shared::published). If they permit a READ, the bytes are
//! copied, and then the records are read again. If the key or the queue pair has changed meanwhile,
//! the READ has not been made: the owner may have reused the memory during the copy.
//!
//! In every other case the peer has to execute the READ, as it executes WRITEs and atomics: `put`
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
use crate::provider::soft::context::core::Core;
use crate::provider::soft::context::general_send::GeneralSend;
use crate::provider::soft::context::link::Rings;
use crate::provider::soft::context::memory::Memory;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::published::ReadRequest;
use crate::types::{Access, CompletionStatus, RemoteMemory};

/// Time for which a READ assumes that a peer which was alive still is. The check polls the peer's
/// link, a system call that takes longer than a short READ.
const ALIVE_TIME: Duration = Duration::from_micros(20);

impl Rings {
    /// Executes a READ, which may overtake the requests before it. `outstanding` READs and atomics are in
    /// flight then. Returns false if the peer has to execute it.
    pub(crate) fn try_read_in_place(
        &mut self,
        send: &GeneralSend,
        from: RemoteMemory,
        outstanding: u8,
        core: &Core,
        memory: &Memory,
    ) -> bool {
        let Some(sender) = &self.sender else {
            return false;
        };
        if !sender.is_ready() || !is_alive(&self.peer, &mut self.seen_alive) {
            return false;
        }
        let Some(to) = core.attributes.dest_qp_num else {
            return false;
        };
        let (published, to_index) = sender.published();
        let request = ReadRequest {
            memory: from,
            len: send.total,
            outstanding,
            from: core.number,
            to,
            to_index,
        };
        let Some(permission) = published.find(&request) else {
            return false;
        };
        if send.total > 0 {
            let cached = match &self.read_arena {
                Some((number, arena)) if *number == permission.arena => arena.upgrade(),
                _ => None,
            };
            let arena = match cached {
                Some(arena) => arena,
                // It may not have arrived yet.
                None => match self.peer.arena(permission.arena) {
                    Some(arena) => {
                        self.read_arena = Some((permission.arena, Arc::downgrade(&arena)));
                        arena
                    }
                    None => return false,
                },
            };
            let Some(offset) = offset_within(&arena, permission.offset, send.total) else {
                return false;
            };
            let (elements, needs) = (send.elements(), Access::LOCAL_WRITE);
            let checked = memory.regions.check_all(elements, core.domain, needs);
            if checked.is_err() {
                // The peer may reject the READ. If it does not, the local error is reported when
                // its response has arrived.
                return false;
            }
            // SAFETY: `offset_within` checked that all bytes of the READ are inside the mapping,
            // which `arena` keeps alive until the end of this block. The elements were just
            // checked, and deregistering them takes the context's lock, which is held.
            unsafe { send.fill(arena.start().add(offset)) };
        }
        published.permits_after_copy(&request, &permission)
    }

    /// Takes the responses to these requests, which are all in order, out of the ring as far as they
    /// have arrived. An error is the status of the oldest request whose response has not been taken.
    pub(crate) fn take_responses<'a>(
        &mut self,
        sends: impl Iterator<Item = &'a mut GeneralSend>,
        core: &Core,
        memory: &Memory,
    ) -> Result<(), CompletionStatus> {
        let Some(sender) = &self.sender else {
            return Ok(());
        };
        for send in sends {
            let Some(slots) = send.slots.clone() else {
                return Ok(());
            };
            // Units only grow: nothing behind this one is acknowledged. So a look does not take longer
            // with many requests that are not.
            if slots.start > sender.acked() {
                return Ok(());
            }
            if !send.operation.has_response() {
                continue;
            }
            // Start at the first slot whose response has not been taken yet.
            for slot in slots.start + send.pieces_received()..slots.end {
                if slot > sender.acked() {
                    return Ok(());
                }
                let (regions, needs) = (&memory.regions, Access::LOCAL_WRITE);
                regions.check_all(send.elements(), core.domain, needs)?;
                let piece = send.piece(send.received);
                let from = if piece.is_staged {
                    let stage = sender.response_in_stage(self.unstaged);
                    self.unstaged += 1;
                    // The peer permits reads but created a ring without staging memory.
                    stage.ok_or(CompletionStatus::BadResponse)?
                } else {
                    sender.response_in_slot(slot)
                };
                // SAFETY: the elements were checked above, and deregistering them takes the
                // context's lock, which is held. A stage holds at least one piece, and a slot
                // at least a short one.
                unsafe { send.scatter(from, send.received, piece.len as usize) };
                send.received += u64::from(piece.len);
            }
        }
        Ok(())
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
