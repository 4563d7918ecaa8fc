//! A send-queue request other than a plain message of one element, from its post to its completion.

use std::ops::Range;
use std::ptr::NonNull;

use super::super::{Operation, Sge, Work};
use super::objects::MAX_SGE;
use super::request_message::MAX_READ_IN_SLOT;
use super::ring::STAGE_LEN;
use super::shared_copy::copy_shared;
use crate::verbs::{CompletionOpcode, LocalKey};

/// A request other than a plain message of one element.
#[derive(Debug)]
pub(super) struct GeneralSend {
    /// Its sequence number in the send queue.
    pub(super) number: u64,
    pub(super) operation: Operation,
    pub(super) fenced: bool,
    pub(super) solicited: bool,
    pub(super) elements: [Sge; MAX_SGE],
    pub(super) element_count: usize,
    /// The bytes of an inline request, copied while it was posted.
    pub(super) inline: Option<Box<[u8]>>,
    /// Total bytes of all elements.
    pub(super) total: u64,
    /// The ring slots that the request has taken so far, by sequence number; `None` until it has
    /// begun. The range is empty for an operation carried out locally, and has several slots for a
    /// long READ.
    pub(super) slots: Option<Range<u64>>,
    /// Of a READ: bytes requested so far, and bytes received so far.
    pub(super) asked: u64,
    pub(super) came: u64,
}

/// State of a queue pair's sending half besides the send queue itself.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// READs and atomics in flight.
    pub(super) reads: u8,
    /// READ pieces requested into staging memory, and READ pieces copied out of it, since the ring
    /// was created.
    pub(super) staged: u64,
    pub(super) unstaged: u64,
}

/// A part of a READ.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) len: u32,
    pub(super) is_staged: bool,
}

impl GeneralSend {
    pub(super) fn new(number: u64, work: &Work, elements: &[Sge]) -> Self {
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

    pub(super) fn elements(&self) -> &[Sge] {
        &self.elements[..self.element_count]
    }

    pub(super) fn is_read_or_atomic(&self) -> bool {
        self.opcode_of_answer().is_some()
    }

    pub(super) fn opcode_of_answer(&self) -> Option<CompletionOpcode> {
        match self.operation {
            Operation::Read(_) => Some(CompletionOpcode::RdmaRead),
            Operation::CompareAndSwap { .. } => Some(CompletionOpcode::CompareAndSwap),
            Operation::FetchAndAdd { .. } => Some(CompletionOpcode::FetchAndAdd),
            _ => None,
        }
    }

    pub(super) fn opcode(&self) -> CompletionOpcode {
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
    /// The elements are readable for their lengths. The poster guarantees this until its call
    /// returns.
    pub(super) unsafe fn stage(&mut self) {
        let mut bytes = vec![0; self.total as usize].into_boxed_slice();
        let mut rest = NonNull::from(&mut *bytes).cast::<u8>();
        for element in self.elements() {
            // SAFETY: the caller guarantees that the element is readable; the lengths add up to the
            // box's length.
            unsafe {
                copy_shared(element.addr, rest, element.len as usize);
                rest = rest.add(element.len as usize);
            }
        }
        self.inline = Some(bytes);
    }

    /// Copies `len` bytes at `from` into the elements, starting at their byte `offset`.
    ///
    /// # Safety
    ///
    /// The elements were checked to lie in registered memory, and `from` is readable for `len`
    /// bytes.
    pub(super) unsafe fn scatter(&self, from: NonNull<u8>, mut offset: u64, len: usize) {
        let mut done = 0;
        for element in self.elements() {
            let element_len = u64::from(element.len);
            if offset >= element_len {
                offset -= element_len;
                continue;
            }
            let part = (len - done).min((element_len - offset) as usize);
            // SAFETY: the range is within the element and within `from`. While the request is in
            // flight, the application and peers access both only through atomics or raw copies.
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
    /// Returns the piece of a READ, or the response of an atomic, that begins at byte `start`.
    pub(super) fn piece(&self, start: u64) -> Piece {
        let whole = match self.operation {
            Operation::Read(_) => self.total,
            _ => 8,
        };
        Piece {
            // The cast is lossless: the length is at most STAGE_LEN.
            len: (whole - start.min(whole)).min(STAGE_LEN as u64) as u32,
            is_staged: whole > u64::from(MAX_READ_IN_SLOT),
        }
    }

    pub(super) fn pieces_that_came(&self) -> u64 {
        self.came.div_ceil(STAGE_LEN as u64)
    }
}
