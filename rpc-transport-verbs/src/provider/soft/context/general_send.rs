//! A request of a send queue that is more than a piece of memory, from its post to its end.

use std::ops::Range;
use std::ptr::NonNull;

use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::shared::copy::copy_shared;
use crate::provider::soft::shared::request_message::MAX_READ_IN_SLOT;
use crate::provider::soft::shared::ring::STAGE_LEN;
use crate::provider::{Operation, Sge, Work};
use crate::verbs::types::{CompletionOpcode, LocalKey};

/// A request that is more than a piece of memory.
#[derive(Debug)]
pub(crate) struct GeneralSend {
    /// Its number in the send queue.
    pub(crate) number: u64,
    pub(crate) operation: Operation,
    pub(crate) fenced: bool,
    pub(crate) solicited: bool,
    pub(crate) elements: [Sge; MAX_SGE],
    pub(crate) element_count: usize,
    /// The bytes of an inline request, copied while it was posted.
    pub(crate) inline: Option<Box<[u8]>>,
    /// Bytes of all elements.
    pub(crate) total: u64,
    /// The ring's slots that it has taken so far, by sequence number, since it was begun. None for what is
    /// done here, several for a long READ.
    pub(crate) slots: Option<Range<u64>>,
    /// Of a READ: bytes asked for, and bytes that came.
    pub(crate) asked: u64,
    pub(crate) came: u64,
}

/// What the sending half of a queue pair has under way besides the queue itself.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    /// READs and atomics that were begun and have not ended.
    pub(crate) reads: u8,
    /// Pieces of READs that were asked for in staging memory, and that were copied out, since the ring was
    /// new.
    pub(crate) staged: u64,
    pub(crate) unstaged: u64,
}

/// A part of a READ.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) len: u32,
    pub(crate) is_staged: bool,
}

impl GeneralSend {
    pub(crate) fn new(number: u64, work: &Work, elements: &[Sge]) -> Self {
        let mut own = [Sge {
            addr: NonNull::dangling(),
            len: 0,
            local_key: LocalKey(0),
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

    pub(crate) fn elements(&self) -> &[Sge] {
        &self.elements[..self.element_count]
    }

    pub(crate) fn is_read_or_atomic(&self) -> bool {
        self.opcode_of_answer().is_some()
    }

    pub(crate) fn opcode_of_answer(&self) -> Option<CompletionOpcode> {
        match self.operation {
            Operation::Read(_) => Some(CompletionOpcode::RdmaRead),
            Operation::CompareAndSwap { .. } => Some(CompletionOpcode::CompareAndSwap),
            Operation::FetchAndAdd { .. } => Some(CompletionOpcode::FetchAndAdd),
            _ => None,
        }
    }

    pub(crate) fn opcode(&self) -> CompletionOpcode {
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
    pub(crate) unsafe fn stage(&mut self) {
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
    pub(crate) unsafe fn scatter(&self, from: NonNull<u8>, mut offset: u64, len: usize) {
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

impl GeneralSend {
    /// The piece of a READ, or the answer of an atomic, that begins at byte `start`.
    pub(crate) fn piece(&self, start: u64) -> Piece {
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

    pub(crate) fn pieces_that_came(&self) -> u64 {
        self.came.div_ceil(STAGE_LEN as u64)
    }
}
