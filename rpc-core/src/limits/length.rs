//! [`LengthLimit`]: which limit a message exceeds, and the sentence that says so.

use super::{LONGEST_MESSAGE, Limits};

/// The limit that a message exceeds: the lowest of those that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LengthLimit {
    /// The sender's own: [`Intents::max_send_message_len`](super::Intents::max_send_message_len).
    Sender,
    /// The receiver's: [`Intents::max_message_len`](super::Intents::max_message_len).
    Receiver,
    /// The method's, which the build script sets.
    Method,
    /// That of a call's metadata. The numbers are those of the metadata.
    Metadata,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Response,
}

impl Direction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Response => "response",
        }
    }
}

impl LengthLimit {
    /// Returns the end of a sentence about something too long: the limit that it exceeds, and what to
    /// do about it.
    #[cold]
    pub(crate) fn exceeded(self, limit: usize, direction: Direction) -> String {
        let (sender, receiver, option) = match direction {
            Direction::Request => ("client", "server", "max_request_len"),
            Direction::Response => ("server", "client", "max_response_len"),
        };
        match self {
            Self::Sender | Self::Receiver if limit >= LONGEST_MESSAGE => {
                format!("exceeds the limit of {limit} bytes for any message: divide it")
            }
            Self::Sender => format!(
                "exceeds the {sender}'s own limit of {limit} bytes: raise `max_send_message_len` on the \
                 {sender}"
            ),
            Self::Receiver => format!(
                "exceeds the {receiver}'s limit of {limit} bytes: raise `max_message_len` on the {receiver}"
            ),
            Self::Method => format!(
                "exceeds the method's limit of {limit} bytes: raise `{option}` of the method in the build \
                 scripts of client and server"
            ),
            Self::Metadata => format!("exceeds the limit of {limit} bytes: shorten the metadata"),
        }
    }
}

/// The lowest of the limits that apply to a message, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageLimit {
    len: u32,
    pub(crate) kind: LengthLimit,
}

impl Default for MessageLimit {
    fn default() -> Self {
        Self::NONE
    }
}

impl MessageLimit {
    /// The limit of a message that nothing limits.
    pub(crate) const NONE: Self = Self {
        len: u32::MAX,
        kind: LengthLimit::Sender,
    };

    pub(crate) const fn new(len: usize, kind: LengthLimit) -> Self {
        let has_effect = len < u32::MAX as usize;
        let len = if has_effect { len as u32 } else { u32::MAX };
        Self { len, kind }
    }

    /// Returns the limit of the messages that this side receives.
    pub(crate) fn of_receiver(limits: &Limits) -> Self {
        Self::new(limits.max_message_len, LengthLimit::Receiver)
    }

    /// Returns the lower one of two limits: this one if they are equal.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        match other.len < self.len {
            true => other,
            false => self,
        }
    }

    /// Returns this limit, or that of a method if it is lower.
    #[must_use]
    pub(crate) fn and_method(self, of_method: Option<u32>) -> Self {
        let kind = LengthLimit::Method;
        of_method.map_or(self, |len| self.and(Self { len, kind }))
    }

    /// Returns the most bytes of a message.
    #[inline]
    pub(crate) fn bytes(self) -> usize {
        self.len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_is_named_alone() {
        let limit = |len, kind| MessageLimit::new(len, kind);
        let receiver = limit(4000, LengthLimit::Receiver);
        let lowest = receiver.and(limit(5000, LengthLimit::Sender));
        assert_eq!(lowest, receiver);
        assert_eq!(lowest.and_method(Some(4000)), receiver);
        assert_eq!(lowest.and_method(None), receiver);
        let lowest = lowest.and_method(Some(3000));
        assert_eq!(lowest, limit(3000, LengthLimit::Method));
        let settings = [
            "max_send_message_len",
            "max_message_len",
            "max_request_len",
            "max_response_len",
        ];
        for (kind, direction, setting) in [
            (LengthLimit::Sender, Direction::Request, 0),
            (LengthLimit::Receiver, Direction::Response, 1),
            (LengthLimit::Method, Direction::Request, 2),
            (LengthLimit::Method, Direction::Response, 3),
        ] {
            let said = kind.exceeded(3000, direction);
            assert!(said.contains("limit of 3000 bytes"), "{said}");
            for (index, name) in settings.iter().enumerate() {
                let names = said.contains(&format!("`{name}`"));
                assert_eq!(names, index == setting, "{said}");
            }
        }
    }

    #[test]
    fn nobody_is_told_to_raise_the_greatest_limit() {
        let said = LengthLimit::Receiver.exceeded(LONGEST_MESSAGE, Direction::Request);
        assert!(!said.contains("raise"), "{said}");
    }
}
