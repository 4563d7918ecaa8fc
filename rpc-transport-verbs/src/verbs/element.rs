//! Scatter/gather elements: the pieces of memory of one work request.

use std::fmt;
use std::ptr::NonNull;

use super::exposed_memory::ExposedMemory;
use super::slot::Slot;
use super::types::keys::LocalKey;
use crate::provider::Sge;

/// One scatter/gather element (`struct ibv_sge`): a piece of registered memory, and the right to let the
/// device use it until the work request has completed.
///
/// Made from a [`Slot`], whose bytes the device then has to itself, or from a range of
/// [`ExposedMemory`], which anybody may touch at any time, so that any number of requests may name the
/// same range.
pub struct Element {
    addr: NonNull<u8>,
    len: u32,
    local_key: LocalKey,
    owner: Owner,
}

// SAFETY: `addr` is an address for the device, inside memory that `owner` keeps registered (or whose
// owner promised that, `from_raw`); it is never followed here. Both owners are Send.
unsafe impl Send for Element {}
// SAFETY: as for `Send`; through a shared element nothing can be touched.
unsafe impl Sync for Element {}

/// What keeps the memory registered.
enum Owner {
    Slot(Slot),
    /// Never looked at: it is there to be dropped when the device is done.
    #[expect(dead_code)]
    Exposed(ExposedMemory),
    Caller,
}

impl Element {
    /// The first `len` bytes of a slot; `None` if it has fewer.
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

    /// `len` bytes of exposed memory from `offset` on.
    pub(super) fn exposed(memory: ExposedMemory, addr: NonNull<u8>, len: u32) -> Self {
        Self {
            addr,
            len,
            local_key: memory.local_key(),
            owner: Owner::Exposed(memory),
        }
    }

    /// Any memory, named by any key: for measurements, and for tests of what devices refuse. The device
    /// checks the key as always.
    ///
    /// # Safety
    ///
    /// Where the key does name a region that has these bytes: until the completion of the request has been
    /// polled, or its queue pair has been reset or destroyed, the region stays registered, nothing else
    /// writes the bytes, and where the device writes them nothing reads them. Of an inline request, whose keys
    /// are not looked at, the bytes can be read while it is posted.
    pub unsafe fn from_raw(addr: NonNull<u8>, len: u32, local_key: LocalKey) -> Self {
        Self {
            addr,
            len,
            local_key,
            owner: Owner::Caller,
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has none: such an element is skipped, and its key is not checked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot that it was made from, if it was.
    pub fn into_slot(self) -> Option<Slot> {
        match self.owner {
            Owner::Slot(slot) => Some(slot),
            Owner::Exposed(_) | Owner::Caller => None,
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

/// The whole slot.
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

/// The elements of a request: none, one, or a list.
#[derive(Debug, Default)]
pub struct Elements(pub(super) Vec<Element>);

impl Elements {
    /// None: a message without bytes.
    pub const NONE: Self = Self(Vec::new());

    /// Bytes of all of them together.
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
