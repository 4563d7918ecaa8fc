//! [`Made`]: messages that a handler makes, and a test counts.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use rpc_core::{Status, Stream};

/// A stream of so many messages of `len` bytes, which are made as it is polled. Adds their number to `made`.
pub(crate) struct Made {
    pub(crate) left: usize,
    pub(crate) len: usize,
    pub(crate) made: Rc<Cell<usize>>,
}

impl Stream for Made {
    type Item = Result<Vec<u8>, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.left == 0 {
            return Poll::Ready(None);
        }
        this.left -= 1;
        this.made.set(this.made.get() + 1);
        Poll::Ready(Some(Ok(vec![7; this.len])))
    }
}
