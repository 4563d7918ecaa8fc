//! Scatter/gather elements: the memory of a work request.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::block::Block;
use super::exposed_memory::ExposedMemory;
use super::slot::Slot;
use super::types::keys::LocalKey;
use super::types::verbs_error::VerbsError;
use crate::provider::Sge;

/// One scatter/gather element (`struct ibv_sge`, `ibv_post_send(3)`): a piece of registered memory,
/// and the right to let the device use it until the work request has completed.
///
/// An element is made from a [`Slot`], whose bytes the device then has exclusively, or from a range
/// of [`ExposedMemory`], which may be accessed at any time, so any number of requests may name the
/// same range.
pub struct Element {
    addr: NonNull<u8>,
    len: u32,
    local_key: LocalKey,
    owner: Owner,
}

// SAFETY: `addr` is an address for the device, inside memory that `owner` keeps registered (or that
// the caller of `from_raw` promised to keep registered); this type never dereferences it. Both
// owners are Send.
unsafe impl Send for Element {}
// SAFETY: a shared element gives no access to the memory, and the reasons for `Send` hold as well.
unsafe impl Sync for Element {}

/// The owner that keeps the memory registered.
enum Owner {
    Slot(Slot),
    /// Never read: dropped once the device is done.
    #[expect(dead_code)]
    Exposed(ExposedMemory),
    /// Never read either: shared by all requests that fill the block.
    #[expect(dead_code)]
    Block(Arc<Block>),
    Caller,
}

impl ExposedMemory {
    /// Makes an element of the bytes of `range`, for local work requests.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if `range` is not inside the region, or its length does not fit
    /// 32 bits.
    pub fn element(&self, range: Range<usize>) -> Result<Element, VerbsError> {
        const CALL: &str = "ExposedMemory::element";
        self.check(CALL, &range)?;
        let len = u32::try_from(range.len()).map_err(|_| VerbsError::OutOfRange {
            call: CALL,
            parameter: "the range's length",
            value: range.len() as u64,
            min: 0,
            max: u32::MAX.into(),
        })?;
        // SAFETY: `check` has verified that the range is inside the region, which stays mapped
        // while the clone in the element lives.
        let addr = unsafe { self.start().add(range.start) };
        Ok(Element::exposed(self.clone(), addr, len))
    }
}

impl Element {
    /// Makes an element of the first `len` bytes of a slot.
    ///
    /// # Errors
    ///
    /// Returns the slot if it has fewer bytes, or if `len` does not fit 32 bits.
    pub fn new(slot: Slot, len: usize) -> Result<Self, Slot> {
        match u32::try_from(len) {
            Ok(len) if len <= slot.len32() => Ok(Self {
                addr: slot.start(),
                len,
                local_key: slot.local_key(),
                owner: Owner::Slot(slot),
            }),
            _ => Err(slot),
        }
    }

    /// Makes an element of `len` bytes of exposed memory, starting at `addr`.
    fn exposed(memory: ExposedMemory, addr: NonNull<u8>, len: u32) -> Self {
        Self {
            addr,
            len,
            local_key: memory.local_key(),
            owner: Owner::Exposed(memory),
        }
    }

    /// Makes an element of `len` bytes of a block, starting at `addr`.
    pub(super) fn of_block(
        block: Arc<Block>,
        addr: NonNull<u8>,
        len: u32,
        local_key: LocalKey,
    ) -> Self {
        Self {
            addr,
            len,
            local_key,
            owner: Owner::Block(block),
        }
    }

    /// Makes an element of arbitrary memory with an arbitrary key, for measurements and for tests
    /// of how devices reject requests. The device checks the key as always.
    ///
    /// # Safety
    ///
    /// If the key names a region that contains these bytes, the following must hold until the
    /// request's completion has been polled, or its queue pair has been reset or destroyed: the
    /// region stays registered, nothing else writes the bytes, and if the device writes them,
    /// nothing reads them. For an inline request, whose keys are not checked, the bytes must be
    /// readable while it is being posted.
    pub unsafe fn from_raw(addr: NonNull<u8>, len: u32, local_key: LocalKey) -> Self {
        Self {
            addr,
            len,
            local_key,
            owner: Owner::Caller,
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if the element has no bytes. Such an element is skipped, and its key is not
    /// checked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slot that the element was made from, if any.
    pub fn into_slot(self) -> Option<Slot> {
        match self.owner {
            Owner::Slot(slot) => Some(slot),
            Owner::Exposed(_) | Owner::Block(_) | Owner::Caller => None,
        }
    }

    pub(super) fn sge(&self) -> Sge {
        Sge {
            addr: self.addr,
            len: self.len,
            local_key: self.local_key,
        }
    }
}

/// Makes an element of the whole slot.
impl From<Slot> for Element {
    fn from(slot: Slot) -> Self {
        Self {
            addr: slot.start(),
            len: slot.len32(),
            local_key: slot.local_key(),
            owner: Owner::Slot(slot),
        }
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Element")
            .field("len", &self.len)
            .field("local_key", &self.local_key)
            .finish_non_exhaustive()
    }
}

/// The elements of a request: zero, one, or several.
#[derive(Debug, Default)]
pub struct Elements(pub(super) Vec<Element>);

impl Elements {
    /// No elements: a message without bytes.
    pub const NONE: Self = Self(Vec::new());

    /// Returns the total length of the elements in bytes.
    pub fn total_len(&self) -> usize {
        self.0.iter().map(Element::len).sum()
    }
}

impl From<Element> for Elements {
    fn from(element: Element) -> Self {
        Self(vec![element])
    }
}

impl From<Slot> for Elements {
    fn from(slot: Slot) -> Self {
        Element::from(slot).into()
    }
}

impl From<Vec<Element>> for Elements {
    fn from(elements: Vec<Element>) -> Self {
        Self(elements)
    }
}

impl FromIterator<Element> for Elements {
    fn from_iter<I: IntoIterator<Item = Element>>(elements: I) -> Self {
        Self(elements.into_iter().collect())
    }
}

impl IntoIterator for Elements {
    type Item = Element;
    type IntoIter = std::vec::IntoIter<Element>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
