//! Requests of any kind on a reliable connection, from the queue into the peer's ring, and their answers.
//!
//! Plain messages of one piece take the short way (`transmit`). Everything else goes this way, in its turn
//! among them: the send queue has a small entry for each, and what is more than that lies beside it, in
//! [`GeneralSend`].

use std::ops::Range;
use std::ptr::NonNull;

use super::super::{Operation, SendWork, Sge, Work};
use super::commit::Flags;
use super::descriptor::{DESCRIPTOR_LEN, Descriptor};
use super::domain::State;
use super::objects::{MAX_MESSAGE_LEN, MAX_SGE};
use super::queue_pair::SoftQueuePair;
use super::request_message::{IN_SLOT, MAX_READ_IN_SLOT, REMOTE_LEN, Request, RequestMessage};
use super::ring::{Doorbell, MAX_IN_RING, RingSender, STAGE_LEN, STAGES};
use super::shared_copy::copy_shared;
use super::work_queues::Completion;
use crate::verbs::{
    Access, CompletionOpcode, CompletionStatus, Extras, PostError, QpState, QpType, RemoteMemory,
};

/// A request that is more than a piece of memory.
#[derive(Debug)]
pub(super) struct GeneralSend {
    /// Its number in the send queue.
    number: u64,
    operation: Operation,
    fenced: bool,
    solicited: bool,
    elements: [Sge; MAX_SGE],
    element_count: usize,
    /// The bytes of an inline request, copied while it was posted.
    inline: Option<Box<[u8]>>,
    /// Bytes of all elements.
    total: u64,
    /// The ring's slots that it has taken so far, by sequence number, since it was begun. None for what is
    /// done here, several for a long READ.
    slots: Option<Range<u64>>,
    /// Of a READ: bytes asked for, and bytes that came.
    asked: u64,
    came: u64,
}

/// What the sending half of a queue pair has under way besides the queue itself.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// READs and atomics that were begun and have not ended.
    pub(super) reads: u8,
    /// Pieces of READs that were asked for in staging memory, and that were copied out, since the ring was
    /// new.
    staged: u64,
    unstaged: u64,
}

/// How far beginning a request has come.
enum Begun {
    Whole,
    /// It has to wait: for room, or for what is before it.
    Not,
}

impl GeneralSend {
    fn new(number: u64, work: &Work, elements: &[Sge]) -> Self {
        let mut own = [Sge {
            addr: NonNull::dangling(),
            len: 0,
            local_key: crate::verbs::LocalKey(0),
        }; MAX_SGE];
        own[..elements.len()].copy_from_slice(elements);
        let total = elements.iter().map(|element| u64::from(element.len)).sum();
        Self {
            number,
            operation: work.operation,
            fenced: work.fenced,
            solicited: work.solicited,
            elements: own,
            element_count: elements.len(),
            inline: None,
            total,
            slots: None,
            asked: 0,
            came: 0,
        }
    }

    fn elements(&self) -> &[Sge] {
        &self.elements[..self.element_count]
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn is_read_or_atomic(&self) -> bool {
        self.opcode_of_answer().is_some()
    }

    fn opcode_of_answer(&self) -> Option<CompletionOpcode> {
        match self.operation {
            Operation::Read(_) => Some(CompletionOpcode::RdmaRead),
            Operation::CompareAndSwap { .. } => Some(CompletionOpcode::CompareAndSwap),
            Operation::FetchAndAdd { .. } => Some(CompletionOpcode::FetchAndAdd),
            _ => None,
        }
    }

    fn opcode(&self) -> CompletionOpcode {
        match self.operation {
            Operation::Write(_) | Operation::WriteWithImm(..) => CompletionOpcode::RdmaWrite,
            Operation::LocalInvalidate(_) => CompletionOpcode::LocalInvalidate,
            Operation::BindWindow(_) => CompletionOpcode::BindWindow,
            _ => self.opcode_of_answer().unwrap_or(CompletionOpcode::Send),
        }
    }

    /// Copies the bytes of an inline request.
    ///
    /// # Safety
    ///
    /// The elements are readable for their lengths: the caller's of the post, before it returns.
    unsafe fn stage(&mut self) {
        let mut bytes = vec![0; self.total as usize].into_boxed_slice();
        let mut rest = NonNull::from(&mut *bytes).cast::<u8>();
        for element in self.elements() {
            // SAFETY: the element is readable, says the caller; the lengths add up to the box's.
            unsafe {
                copy_shared(element.addr, rest, element.len as usize);
                rest = rest.add(element.len as usize);
            }
        }
        self.inline = Some(bytes);
    }

    /// `len` bytes from `from`, into the elements from their byte `offset` on.
    ///
    /// # Safety
    ///
    /// The elements were checked to lie in registered memory, and `from` is readable for `len` bytes.
    unsafe fn scatter(&self, from: NonNull<u8>, mut offset: u64, len: usize) {
        let mut done = 0;
        for element in self.elements() {
            let element_len = u64::from(element.len);
            if offset >= element_len {
                offset -= element_len;
                continue;
            }
            let part = (len - done).min((element_len - offset) as usize);
            // SAFETY: within the element and within `from`, whose users and peers reach both through atomics
            // or raw copies alone while the request is in flight.
            unsafe { copy_shared(from.add(done), element.addr.add(offset as usize), part) };
            done += part;
            offset = 0;
            if done == len {
                return;
            }
        }
    }
}

/// A part of a READ.
#[derive(Clone, Copy)]
struct Piece {
    len: u32,
    is_staged: bool,
}

impl State {
    /// Takes a list of requests of any kind.
    pub(super) fn post(
        &mut self,
        place: u32,
        list: &[Work],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        let qp = &mut self.queue_pairs[place as usize];
        if qp.qp_type != QpType::ReliableConnection {
            return self.post_unreliable(place, list, elements);
        }
        let state = qp.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) && !list.is_empty() {
            return Err(PostError {
                taken: 0,
                reason: crate::verbs::PostErrorReason::State { state },
            });
        }
        let mut taken = 0;
        for work in list {
            if !qp.post_one(work, work.elements(elements)) {
                break;
            }
            taken += 1;
        }
        match state {
            QpState::Error => self.flush_sends(place),
            _ => self.transmit(place),
        }
        if taken == list.len() {
            return Ok(());
        }
        let capacity = self.queue_pairs[place as usize].sends.capacity();
        Err(PostError {
            taken,
            reason: crate::verbs::PostErrorReason::QueueFull { capacity },
        })
    }

    /// Begins the requests that are next, if they are of this file, and rings once. `true`: the next is a plain
    /// message, and may be begun.
    #[cold]
    pub(super) fn issue(&mut self, place: u32) -> bool {
        let qp = &mut self.queue_pairs[place as usize];
        let before = qp.link.sender.as_ref().map(RingSender::next);
        let mut is_one_sided = false;
        let goes_on = loop {
            let qp = &mut self.queue_pairs[place as usize];
            let number = qp.sends.started;
            let Some(work) = qp
                .sends
                .request(number)
                .filter(|_| number < qp.sends.posted)
            else {
                break false;
            };
            if !work.general {
                break true;
            }
            let Some(index) = qp
                .sends
                .general
                .iter()
                .position(|send| send.number == number)
            else {
                break false;
            };
            match self.begin(place, index) {
                Ok(Begun::Whole) => {
                    let qp = &mut self.queue_pairs[place as usize];
                    let send = &qp.sends.general[index];
                    is_one_sided |= !matches!(send.opcode(), CompletionOpcode::Send);
                    qp.sends.started += 1;
                }
                Ok(Begun::Not) => {
                    let qp = &self.queue_pairs[place as usize];
                    is_one_sided |= qp.sends.general[index].slots.is_some();
                    break false;
                }
                Err(status) => {
                    // It completes when all before it have: see `settle`.
                    self.queue_pairs[place as usize].sends.local_failure = Some(status);
                    break false;
                }
            }
        };
        let qp = &mut self.queue_pairs[place as usize];
        if let (Some(sender), Some(before)) = (&mut qp.link.sender, before) {
            sender.set_held(qp.outstanding.reads > 0);
            let written = sender.next() - before;
            if written > 0 {
                self.counters.sends += written;
                self.counters.doorbells += 1;
                let doorbell = sender.ring_doorbell();
                self.counters.wakes += u64::from(doorbell != Doorbell::Hot);
                self.counters.sleepers_woken += u64::from(doorbell == Doorbell::Asleep);
                if is_one_sided {
                    sender.call_engine();
                }
            }
        }
        goes_on
    }

    /// Begins a request, or goes on beginning it: writes what has room. An error is the status that it
    /// completes with.
    fn begin(&mut self, place: u32, index: usize) -> Result<Begun, CompletionStatus> {
        let qp = &mut self.queue_pairs[place as usize];
        let (domain, qp_num) = (qp.domain, qp.number);
        let (may_begin, may_go_on) = match qp.state {
            QpState::Rts => (true, true),
            // What was begun is finished.
            QpState::Sqd => (false, true),
            _ => (false, false),
        };
        let send = &mut qp.sends.general[index];
        let is_begun = send.slots.is_some();
        let Some(sender) = &mut qp.link.sender else {
            return Ok(Begun::Not);
        };
        let is_permitted = if is_begun { may_go_on } else { may_begin };
        if !is_permitted || qp.link.is_deaf || qp.sends.local_failure.is_some() {
            return Ok(Begun::Not);
        }
        if !is_begun {
            if send.fenced && qp.outstanding.reads > 0 {
                return Ok(Begun::Not);
            }
            let most = qp.attributes.max_rd_atomic.unwrap_or(0);
            if send.is_read_or_atomic() && qp.outstanding.reads >= most {
                return Ok(Begun::Not);
            }
            if send.total > MAX_MESSAGE_LEN as u64 {
                return Err(CompletionStatus::LocalLength);
            }
        }
        let next = sender.next();
        match send.operation {
            Operation::LocalInvalidate(_) | Operation::BindWindow(_) => {
                // A key is taken away when all before have ended, which may name it.
                let is_first = qp.sends.acked == qp.sends.started;
                if matches!(send.operation, Operation::LocalInvalidate(_)) && !is_first {
                    return Ok(Begun::Not);
                }
                send.slots = Some(next..next);
                match send.operation {
                    Operation::LocalInvalidate(key) => self
                        .invalidate(key, domain, qp_num)
                        // Unlike a peer's, it is this side's mistake.
                        .map_err(|_| CompletionStatus::MemoryWindowBind)?,
                    Operation::BindWindow(binding) => {
                        self.bind_window(&binding, domain, qp_num)?;
                    }
                    _ => {}
                }
                return Ok(Begun::Whole);
            }
            Operation::Read(memory) => return Ok(qp.ask(index, memory)),
            _ => {}
        }
        if !sender.has_room() {
            return Ok(Begun::Not);
        }
        let outstanding = qp.outstanding.reads + u8::from(send.is_read_or_atomic());
        let request = match send.operation {
            Operation::Send => Request::Send,
            Operation::SendWithImm(imm) => Request::SendWithImm(imm),
            Operation::SendWithInvalidate(key) => Request::SendWithInvalidate(key),
            Operation::Write(memory) => Request::Write(memory),
            Operation::WriteWithImm(memory, imm) => Request::WriteWithImm(memory, imm),
            Operation::CompareAndSwap {
                remote: memory,
                expected,
                desired,
            } => Request::CompareAndSwap {
                memory,
                expected,
                desired,
            },
            Operation::FetchAndAdd {
                remote: memory,
                addend,
            } => Request::FetchAndAdd { memory, addend },
            Operation::Read(_) | Operation::LocalInvalidate(_) | Operation::BindWindow(_) => {
                return Ok(Begun::Not);
            }
        };
        let mut message = RequestMessage {
            request,
            outstanding,
            descriptors: 0,
        };
        let flags = if send.solicited { Flags::SOLICITED } else { 0 };
        // Kept while the ring is written: they are its parts.
        let mut descriptors = [[0; DESCRIPTOR_LEN]; MAX_SGE];
        let mut parts = [(NonNull::dangling(), 0); MAX_SGE];
        let mut count = 0;
        let mut put = |part| {
            parts[count] = part;
            count += 1;
        };
        if send.is_read_or_atomic() {
            // Nothing of this side travels; where the answer goes is checked when it has come.
        } else if let Some(bytes) = &send.inline {
            put((NonNull::from(&**bytes).cast(), bytes.len()));
        } else {
            let fits = send.total as usize <= MAX_IN_RING - REMOTE_LEN;
            for (element, descriptor) in send.elements().iter().zip(&mut descriptors) {
                let bytes = (element.addr, element.len as usize);
                let checked = self
                    .regions
                    .check(element.local_key, domain, bytes, Access::NONE)?;
                if element.len == 0 {
                    continue;
                }
                if fits {
                    put(bytes);
                    continue;
                }
                let (arena, offset) = checked;
                *descriptor = Descriptor {
                    arena,
                    offset: offset as u64,
                    len: element.len,
                }
                .emit();
                message.descriptors += 1;
                put((NonNull::from(&*descriptor).cast(), DESCRIPTOR_LEN));
            }
        }
        let (word, prefix, prefix_len) = message.emit();
        // SAFETY: the parts are registered memory, which was checked just now and belongs to the request, or
        // bytes of this function, or of the request. Descriptors of all elements fit a slot.
        unsafe {
            sender.send_request(
                word,
                &prefix[..prefix_len],
                parts[..count].iter().copied(),
                flags,
            );
        }
        send.slots = Some(next..next + 1);
        qp.outstanding.reads = outstanding;
        Ok(Begun::Whole)
    }

    /// Completes what the peer has acknowledged, where requests of this file are among it.
    #[cold]
    pub(super) fn complete_general(&mut self, place: u32) -> Acked {
        loop {
            let qp = &mut self.queue_pairs[place as usize];
            let Some(sender) = &qp.link.sender else {
                return Acked::Fine;
            };
            let oldest = qp.sends.acked;
            let front = qp.sends.general.front();
            let begun = front.and_then(|send| Some((send.number, send.slots.clone()?)));
            match begun {
                Some((number, _)) if number == oldest => match self.finish(place) {
                    Ok(true) => {}
                    Ok(false) => return Acked::Fine,
                    Err(status) => {
                        self.complete_oldest_send(place, status);
                        return Acked::Failed;
                    }
                },
                // Plain ones come first. Each has a slot, the last of them the one before the front's.
                Some((number, slots)) => {
                    let last = slots.start - (number - oldest);
                    if last > sender.acked() {
                        return Acked::Fine;
                    }
                    self.complete_oldest_plain(place);
                }
                None => {
                    let unacked = sender.unacked();
                    if qp.sends.started - oldest <= unacked {
                        return Acked::Fine;
                    }
                    self.complete_oldest_plain(place);
                }
            }
        }
    }

    fn complete_oldest_plain(&mut self, place: u32) {
        self.complete_oldest_successfully(place, CompletionOpcode::Send, 0);
    }

    /// Finishes the oldest request, if its slots are acknowledged. `false`: not yet.
    fn finish(&mut self, place: u32) -> Result<bool, CompletionStatus> {
        let qp = &mut self.queue_pairs[place as usize];
        let is_started = qp.sends.started > qp.sends.acked;
        let (Some(send), Some(sender)) = (qp.sends.general.front_mut(), &qp.link.sender) else {
            return Ok(false);
        };
        let Some(slots) = &send.slots else {
            return Ok(false);
        };
        if let Some(opcode) = send.opcode_of_answer() {
            // From the first slot whose answer has not been read yet.
            let mut slot = match send.operation {
                Operation::Read(_) => slots.start + send.pieces_that_came(),
                _ => slots.start,
            };
            while slot < slots.end && slot <= sender.acked() {
                self.regions
                    .check_all(send.elements(), qp.domain, Access::LOCAL_WRITE)?;
                let piece = send.piece(send.came);
                let from = if piece.is_staged {
                    let stage = sender.answer_in_stage(qp.outstanding.unstaged);
                    qp.outstanding.unstaged += 1;
                    // The peer permits reads, and has made a ring without memory for them.
                    stage.ok_or(CompletionStatus::BadResponse)?
                } else {
                    sender.answer_in_slot(slot)
                };
                // SAFETY: checked above, and the context's owner word, which deregistering takes, is held; a
                // stage has at least the bytes of a piece, and a slot those of a short one.
                unsafe { send.scatter(from, send.came, piece.len as usize) };
                send.came += u64::from(piece.len);
                slot += 1;
            }
            if !is_started || slot < slots.end {
                return Ok(false);
            }
            let len = send.total as u32;
            qp.outstanding.reads = qp.outstanding.reads.saturating_sub(1);
            if let Some(sender) = &mut qp.link.sender {
                sender.set_held(qp.outstanding.reads > 0);
            }
            self.complete_oldest_successfully(place, opcode, len);
            return Ok(true);
        }
        if !is_started || slots.end > sender.acked() + 1 {
            return Ok(false);
        }
        let opcode = send.opcode();
        self.complete_oldest_successfully(place, opcode, 0);
        Ok(true)
    }

    pub(super) fn complete_oldest_successfully(
        &mut self,
        place: u32,
        opcode: CompletionOpcode,
        byte_len: u32,
    ) {
        let qp = &mut self.queue_pairs[place as usize];
        let Some((number, work)) = qp.sends.retire() else {
            return;
        };
        qp.sends.forget_general(number);
        if !work.signaled {
            return;
        }
        let completion = Completion {
            wr_id: work.wr_id,
            status: CompletionStatus::Success.code(),
            opcode,
            extras: Extras::default(),
            qp_num: qp.number,
            byte_len,
            data: 0,
            src_qp: 0,
            frees: Some((place, number)),
        };
        let cq = qp.send_cq;
        self.complete(cq, completion);
    }
}

/// What a look at the peer's acknowledgement came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acked {
    Fine,
    /// It acknowledged what was never sent.
    Nonsense,
    /// The oldest request has failed here, and has completed.
    Failed,
}

impl GeneralSend {
    /// The piece of a READ, or the answer of an atomic, that begins at byte `start`.
    fn piece(&self, start: u64) -> Piece {
        let whole = match self.operation {
            Operation::Read(_) => self.total,
            _ => 8,
        };
        Piece {
            // At most STAGE_LEN.
            len: (whole - start.min(whole)).min(STAGE_LEN as u64) as u32,
            is_staged: whole > u64::from(MAX_READ_IN_SLOT),
        }
    }

    fn pieces_that_came(&self) -> u64 {
        self.came.div_ceil(STAGE_LEN as u64)
    }
}

impl SoftQueuePair {
    /// Puts a request into the queue. `false`: it is full.
    fn post_one(&mut self, work: &Work, elements: &[Sge]) -> bool {
        let signaled = work.signaled || self.sq_sig_all;
        let number = self.sends.posted;
        let is_plain = matches!(work.operation, Operation::Send) && !work.fenced && !work.inline;
        if let (true, &[only]) = (is_plain, elements) {
            return self.sends.push(SendWork {
                wr_id: work.wr_id,
                addr: only.addr,
                len: only.len,
                local_key: only.local_key,
                signaled,
                inline: false,
                solicited: work.solicited,
                general: false,
            });
        }
        let is_taken = self.sends.push(SendWork {
            wr_id: work.wr_id,
            addr: NonNull::dangling(),
            len: 0,
            local_key: crate::verbs::LocalKey(0),
            signaled,
            inline: false,
            solicited: work.solicited,
            general: true,
        });
        if is_taken {
            let mut send = GeneralSend::new(number, work, elements);
            if work.inline {
                // SAFETY: this is the call that posts it, and its elements are the caller's until it returns.
                unsafe { send.stage() };
            }
            self.sends.general.push_back(send);
        }
        is_taken
    }

    /// Asks for as many pieces of a READ as there is room for.
    fn ask(&mut self, index: usize, memory: RemoteMemory) -> Begun {
        let send = &mut self.sends.general[index];
        let Some(sender) = &mut self.link.sender else {
            return Begun::Not;
        };
        let outstanding = self.outstanding.reads + u8::from(send.slots.is_none());
        loop {
            let piece = send.piece(send.asked);
            let staged = self.outstanding.staged - self.outstanding.unstaged;
            if !sender.has_room() || (piece.is_staged && staged == STAGES) {
                return Begun::Not;
            }
            let request = Request::Read {
                memory: memory.offset(send.asked),
                len: piece.len,
                total: if send.asked == 0 {
                    // At most MAX_MESSAGE_LEN.
                    send.total as u32
                } else {
                    piece.len
                },
                place: if piece.is_staged {
                    (self.outstanding.staged % STAGES) as u32
                } else {
                    IN_SLOT
                },
            };
            let message = RequestMessage {
                request,
                outstanding,
                descriptors: 0,
            };
            let (word, prefix, len) = message.emit();
            let next = sender.next();
            // SAFETY: no parts but the prefix.
            unsafe { sender.send_request(word, &prefix[..len], std::iter::empty(), 0) };
            sender.set_held(true);
            self.outstanding.staged += u64::from(piece.is_staged);
            self.outstanding.reads = outstanding;
            send.asked += u64::from(piece.len);
            let first = send.slots.as_ref().map_or(next, |slots| slots.start);
            send.slots = Some(first..next + 1);
            if send.asked == send.total {
                return Begun::Whole;
            }
        }
    }
}
