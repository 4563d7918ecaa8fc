//! The frames that arrive on a [`Connection`]: the rules that they obey, and their effect.

use super::{Activity, Connection, LatestFrame, ProtocolError, Role};
use crate::protocol::frame::{
    ABANDONED, Flags, FrameError, FrameHeader, FrameKind, MESSAGE_BATCH, ONE_MESSAGE,
};

/// The flags that [`Connection::handle_flagged`] handles. The remaining flag is a property of a
/// frame that takes a credit, and almost any frame may have it.
const RARE: Flags = Flags::from_bits(!Flags::SPENT.bits());

impl Connection {
    /// Applies the header of a frame that arrived.
    ///
    /// # Errors
    ///
    /// Returns [`ProtocolError`] if the peer must not send this frame now.
    // Always inlined: every frame needs it, in one place. What is not inlined gets a copy of the
    // header, so that the caller's can be in registers.
    #[inline(always)]
    pub fn handle_header(&mut self, header: &FrameHeader) -> Result<(), ProtocolError> {
        let header = *header;
        if header.flags.intersects(RARE) {
            return self.handle_flagged(header);
        }
        if header.credits != 0 {
            self.credits.add(header.credits)?;
        }
        match (header.kind, self.role) {
            (FrameKind::Request, Role::Server) => self.receive_request(header),
            (FrameKind::Response, Role::Client) => self.receive_response(header),
            (FrameKind::Message, _) => self.receive_message(header),
            _ => self.handle_other(header),
        }
    }

    /// Handles a frame with flags that few frames have.
    #[cold]
    #[inline(never)]
    fn handle_flagged(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        self.check_flags(header)?;
        if header.flags.contains(Flags::GOING_AWAY) {
            self.going_away = true;
        }
        if header.flags.contains(Flags::RETURNED) {
            self.freed += self.window.reclaim(header.credits, self.peer_keeps())?;
        } else {
            self.credits.add(header.credits)?;
        }
        if header.flags.contains(Flags::ACK) {
            self.window.control_frame_acknowledged()?;
        }
        let is_long = header.flags.contains(Flags::LONG);
        if is_long {
            self.check_long(header)?;
        }
        match (header.kind, self.role) {
            (FrameKind::Request, Role::Server) if header.flags.contains(Flags::STREAM) => {
                self.receive_stream_request(header)
            }
            (FrameKind::Response, Role::Client) if header.flags.contains(Flags::STREAM) => {
                self.receive_stream_response(header)
            }
            (FrameKind::Request, Role::Server) => self.receive_request(header),
            (FrameKind::Response, Role::Client) => {
                if is_long {
                    self.latest = LatestFrame::of(&header);
                }
                self.receive_response(header)
            }
            _ => self.handle_other(header),
        }
    }

    /// Checks that the peer may set these flags in such a frame.
    fn check_flags(&self, header: FrameHeader) -> Result<(), ProtocolError> {
        let (kind, role, flags) = (header.kind, self.role, header.flags);
        let from_server = match role {
            Role::Client => Flags::GOING_AWAY,
            Role::Server => Flags::NONE,
        };
        let of_kind = match (kind, role) {
            (FrameKind::Request, _) => Flags::STREAM | Flags::LONG | Flags::LAST,
            (FrameKind::Response, _) => Flags::STREAM | Flags::LONG | Flags::INITIAL,
            (FrameKind::Control, _) => Flags::RETURNED,
            (FrameKind::Message, Role::Client) => Flags::LONG,
            (FrameKind::Message, Role::Server) => Flags::LONG | Flags::LAST,
            (FrameKind::Acknowledgement | FrameKind::Continuation, _) => Flags::NONE,
        };
        let wrong = flags.without(Flags::ACK | Flags::SPENT | from_server | of_kind);
        if wrong != Flags::NONE {
            let flag = wrong.first_name();
            return Err(ProtocolError::WrongFlag { flag, kind, role });
        }
        let is_request = kind == FrameKind::Request;
        if is_request && flags.contains(Flags::LAST) && !flags.contains(Flags::STREAM) {
            let flag = Flags::STREAM.first_name();
            return Err(ProtocolError::MissingFlag { flag, kind });
        }
        Ok(())
    }

    /// Handles a frame that is neither a request to a server nor a response to a client.
    #[inline(never)]
    fn handle_other(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        let (kind, role) = (header.kind, self.role);
        match kind {
            FrameKind::Control => Ok(self.window.control_frame_received()?),
            FrameKind::Message => self.receive_message(header),
            // Its flag has been handled.
            FrameKind::Acknowledgement if header.flags.contains(Flags::ACK) => Ok(()),
            FrameKind::Acknowledgement => {
                let flag = Flags::ACK.first_name();
                Err(ProtocolError::MissingFlag { flag, kind })
            }
            FrameKind::Continuation => self.receive_continuation(header),
            FrameKind::Request | FrameKind::Response => {
                Err(ProtocolError::WrongDirection { kind, role })
            }
        }
    }

    /// Checks a frame whose message is long, apart from the rules for the same frame with a short one.
    fn check_long(&self, header: FrameHeader) -> Result<(), ProtocolError> {
        let (kind, selector, flags) = (header.kind, header.selector, header.flags);
        let is_opening = kind == FrameKind::Request && flags.contains(Flags::STREAM);
        match kind {
            // A request that opens a stream of the client has no message.
            FrameKind::Request if is_opening && !flags.contains(Flags::LAST) => {
                let flag = Flags::LAST.first_name();
                Err(ProtocolError::MissingFlag { flag, kind })
            }
            FrameKind::Message if selector != ONE_MESSAGE => {
                Err(FrameError::Selector { selector }.into())
            }
            // A status is never long.
            FrameKind::Response if selector != 0 => Err(FrameError::Selector { selector }.into()),
            _ => Ok(()),
        }
    }

    fn receive_continuation(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        let (kind, selector) = (header.kind, header.selector);
        self.receive_credited(header)?;
        if selector > ABANDONED {
            return Err(FrameError::Selector { selector }.into());
        }
        if header.metadata_len != 0 {
            let len = header.metadata_len.into();
            return Err(FrameError::LongBody { kind, len }.into());
        }
        Ok(())
    }

    #[inline(always)]
    fn receive_request(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        self.window.consume()?;
        if self.calls_in_flight >= self.max_in_flight {
            return Err(ProtocolError::TooManyCalls {
                limit: self.max_in_flight,
            });
        }
        self.calls_in_flight += 1;
        self.latest = LatestFrame::of(&header);
        Ok(())
    }

    #[inline(always)]
    fn receive_response(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        self.calls_in_flight = self
            .calls_in_flight
            .checked_sub(1)
            .ok_or(ProtocolError::UnknownCall { call: header.call })?;
        Ok(())
    }

    fn receive_stream_request(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        self.receive_credited(header)?;
        if self.streams >= self.max_streams {
            return Err(ProtocolError::TooManyStreams {
                limit: self.max_streams,
            });
        }
        self.streams += 1;
        self.activity = Activity::Used;
        Ok(())
    }

    fn receive_stream_response(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        self.receive_credited(header)?;
        self.streams = self
            .streams
            .checked_sub(1)
            .ok_or(ProtocolError::UnknownCall { call: header.call })?;
        Ok(())
    }

    fn receive_message(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        self.receive_credited(header)?;
        let (selector, metadata_len) = (header.selector, header.metadata_len);
        if selector > MESSAGE_BATCH {
            return Err(FrameError::Selector { selector }.into());
        }
        if metadata_len != 0 && self.role == Role::Server {
            return Err(ProtocolError::MessageMetadata { metadata_len });
        }
        Ok(())
    }

    fn receive_credited(&mut self, header: FrameHeader) -> Result<(), ProtocolError> {
        self.window.consume()?;
        self.latest = LatestFrame::of(&header);
        Ok(())
    }
}
