//! [`Permit`]: what a frame has taken before it leaves, given back unless it leaves.

use std::mem;

use super::Outbox;
use super::class::Class;
use crate::driver::link::Link;
use crate::transport::{ReserveError, Transport};

/// What a frame lacks to leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Missing {
    /// A turn: others came first.
    Turn,
    /// A credit, room in flight, or room among the streams.
    Credit,
    /// A receive for the response.
    Receive,
    /// A send slot, or an entry of the send queue.
    Slot,
    /// A number for the call: responses that leaked futures never took occupy all of them.
    CallId,
    /// A connection: it has ended, which the next event reports.
    Connection,
    /// Length: the longest frame of the connection has so many bytes.
    Length { limit: usize },
}

impl From<ReserveError> for Missing {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::NoSlot => Self::Slot,
            ReserveError::Closed => Self::Connection,
            ReserveError::TooLong { limit, .. } => Self::Length { limit },
        }
    }
}

/// The send slot of a frame.
pub(in super::super) enum Slot<S> {
    /// One for a frame of this length.
    Of(usize),
    /// One that was reserved before.
    Reserved(S),
}

/// What a frame has taken. Dropping it gives everything back.
pub(in super::super) struct Permit<'a, T: Transport> {
    class: Class,
    pub(in super::super) link: &'a mut Link<T::RecvBuf>,
    pub(in super::super) transport: &'a mut T,
    outbox: &'a mut Outbox,
}

impl Outbox {
    /// Takes what a frame of a class needs to leave on a link.
    ///
    /// # Errors
    ///
    /// Returns [`Missing::Credit`] or [`Missing::Connection`]. Nothing was taken.
    #[inline(always)]
    pub(in super::super) fn permit<'a, T: Transport>(
        &'a mut self,
        class: Class,
        link: &'a mut Link<T::RecvBuf>,
        transport: &'a mut T,
    ) -> Result<Permit<'a, T>, Missing> {
        if link.ended.is_some() {
            return Err(Missing::Connection);
        }
        match class.take(link) {
            true => Ok(self.resume(class, link, transport)),
            false => Err(Missing::Credit),
        }
    }

    /// Returns a permit that was [held](Permit::hold).
    #[inline(always)]
    pub(in super::super) fn resume<'a, T: Transport>(
        &'a mut self,
        class: Class,
        link: &'a mut Link<T::RecvBuf>,
        transport: &'a mut T,
    ) -> Permit<'a, T> {
        Permit {
            class,
            link,
            transport,
            outbox: self,
        }
    }
}

impl<T: Transport> Permit<'_, T> {
    /// Keeps what was taken, until [`Outbox::resume`].
    #[inline(always)]
    pub(in super::super) fn hold(self) {
        mem::forget(self);
    }

    /// Reserves a slot for a frame that is written before [`send`](Self::send), and
    /// [holds](Self::hold) the permit.
    ///
    /// # Errors
    ///
    /// Returns what is missing. Everything was given back.
    pub(in super::super) fn reserve(self, len: usize) -> Result<T::SendBuf, Missing> {
        let buf = self.transport.reserve(self.link.id, len)?;
        self.hold();
        Ok(buf)
    }

    /// Sends a frame of private memory. `write` writes what is missing of it, such as the header whose
    /// credits must not be lost: once it has returned, the frame counts as sent. If it returns `None`,
    /// nothing is sent.
    ///
    /// # Errors
    ///
    /// Returns what is missing. Everything was given back, and `write` was not called, unless it has
    /// returned `None` ([`Missing::CallId`]).
    // Always inlined, as `write` is with it: each call pays for it.
    #[inline(always)]
    pub(in super::super) fn send_inline<R>(
        mut self,
        frame: &mut [u8],
        write: impl FnOnce(&mut Link<T::RecvBuf>, &mut [u8]) -> Option<R>,
    ) -> Result<R, Missing> {
        let Self {
            link, transport, ..
        } = &mut self;
        let sent = transport.send_inline(link.id, frame, |frame| write(link, frame))?;
        self.finish(sent)
    }

    /// Sends a frame in a send slot, as [`send_inline`](Self::send_inline). If the connection has ended
    /// and the slot was reserved before, the frame is lost, and the next event reports the end.
    #[inline(always)]
    pub(in super::super) fn send<R>(
        mut self,
        slot: Slot<T::SendBuf>,
        write: impl FnOnce(&mut Link<T::RecvBuf>, &mut [u8]) -> Option<R>,
    ) -> Result<R, Missing> {
        let Self {
            link, transport, ..
        } = &mut self;
        let mut buf = match slot {
            Slot::Reserved(buf) => buf,
            Slot::Of(len) => transport.reserve(link.id, len)?,
        };
        let written = write(link, buf.as_mut());
        match &written {
            // The event of the connection's end ends what the frame belongs to.
            Some(_) => {
                let _ = transport.send(link.id, buf);
            }
            None => transport.cancel(buf),
        }
        self.finish(written)
    }

    /// Ends the way of a frame, unless it was not sent.
    #[inline(always)]
    fn finish<R>(self, sent: Option<R>) -> Result<R, Missing> {
        let sent = sent.ok_or(Missing::CallId)?;
        self.outbox.unflushed = true;
        mem::forget(self);
        Ok(sent)
    }
}

impl<T: Transport> Drop for Permit<'_, T> {
    #[cold]
    fn drop(&mut self) {
        self.class.give_back(self.link);
    }
}
