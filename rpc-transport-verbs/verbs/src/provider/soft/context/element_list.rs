//! [`ElementList`]: a request's scatter/gather elements, held by the request itself.

use std::ptr::NonNull;

use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::work::Sge;
use crate::types::LocalKey;

/// At most [`MAX_SGE`] elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementList {
    elements: [Sge; MAX_SGE],
    count: usize,
}

impl ElementList {
    /// Copies a list that is not longer than [`MAX_SGE`].
    pub(crate) fn new(list: &[Sge]) -> Self {
        let mut elements = [Sge {
            addr: NonNull::dangling(),
            len: 0,
            local_key: LocalKey(0),
        }; MAX_SGE];
        elements[..list.len()].copy_from_slice(list);
        Self {
            elements,
            count: list.len(),
        }
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        &self.elements[..self.count]
    }
}

/// Calls `found` with the parts of the elements from byte `start` on, `len` bytes in all, in order.
pub(crate) fn for_each_part(
    elements: &[Sge],
    mut start: usize,
    mut len: usize,
    mut found: impl FnMut(NonNull<u8>, usize),
) {
    for element in elements {
        let element_len = element.len as usize;
        if start >= element_len {
            start -= element_len;
            continue;
        }
        let part = len.min(element_len - start);
        if part == 0 {
            return;
        }
        // SAFETY: `start` is less than the element's length, so the pointer stays inside the memory
        // that the element names. Nothing is dereferenced here.
        found(unsafe { element.addr.add(start) }, part);
        len -= part;
        start = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_bytes_asked_for_and_no_others() {
        let element = |addr: usize, len| Sge {
            addr: NonNull::new(std::ptr::without_provenance_mut(addr)).unwrap(),
            len,
            local_key: LocalKey(0),
        };
        let list = ElementList::new(&[element(100, 4), element(200, 0), element(300, 6)]);
        let parts = |start, len| {
            let mut parts = Vec::new();
            for_each_part(list.as_slice(), start, len, |at, len| {
                parts.push((at.as_ptr().addr(), len));
            });
            parts
        };
        assert_eq!(parts(0, 10), [(100, 4), (300, 6)]);
        assert_eq!(parts(3, 2), [(103, 1), (300, 1)]);
        assert_eq!(parts(4, 99), [(300, 6)]);
        assert_eq!(parts(10, 1), []);
        assert_eq!(parts(0, 0), []);
    }
}
