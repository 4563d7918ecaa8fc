//! What the random walk is made of: lists of requests, of every kind, as proptest makes them up.

use std::ops::Range;

use proptest::prelude::*;

pub(super) const RECEIVES: usize = 8;
/// Longer than a packet.
pub(super) const MAX_LEN: usize = 1500;
pub(super) const WINDOWS: usize = 3;

/// What one end posts at a time.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(super) is_left: bool,
    /// Whether the peer's receives are posted after the requests that need them.
    pub(super) is_late: bool,
    pub(super) requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) len: u16,
    pub(super) signaled: bool,
    pub(super) inline: bool,
    /// With the key of a window, where the peer has one.
    pub(super) window: Option<u8>,
    /// With a key of nobody.
    pub(super) is_wrong: bool,
    pub(super) value: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    SendImm,
    SendInvalidate,
    Write,
    WriteFetched,
    WriteImm,
    Read,
    FetchAndAdd,
    CompareAndSwap,
    Bind,
    Invalidate,
}

impl Arbitrary for Round {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        let kind = prop_oneof![
            Just(Kind::Send),
            Just(Kind::SendImm),
            Just(Kind::SendInvalidate),
            Just(Kind::Write),
            Just(Kind::WriteFetched),
            Just(Kind::WriteImm),
            Just(Kind::Read),
            Just(Kind::FetchAndAdd),
            Just(Kind::CompareAndSwap),
            Just(Kind::Bind),
            Just(Kind::Invalidate),
        ];
        let places = (any::<u16>(), any::<u16>(), 0..=MAX_LEN as u16, any::<u8>());
        let flags = (
            any::<bool>(),
            any::<bool>(),
            proptest::option::of(0..WINDOWS as u8),
            proptest::bool::weighted(0.02),
        );
        let request = (kind, places, flags).prop_map(|(kind, places, flags)| {
            let (from, to, len, value) = places;
            let (signaled, inline, window, is_wrong) = flags;
            Request {
                kind,
                from,
                to,
                len,
                signaled,
                inline,
                window,
                is_wrong,
                value,
            }
        });
        let requests = proptest::collection::vec(request, 1..RECEIVES);
        (any::<bool>(), any::<bool>(), requests)
            .prop_map(|(is_left, is_late, requests)| Self {
                is_left,
                is_late,
                requests,
            })
            .boxed()
    }
}

impl Request {
    pub(super) fn takes_receive(&self) -> bool {
        matches!(
            self.kind,
            Kind::Send | Kind::SendImm | Kind::SendInvalidate | Kind::WriteImm
        )
    }

    /// So many bytes of an area, somewhere in it.
    pub(super) fn place(at: u16, len: usize, area: Range<usize>) -> Range<usize> {
        let start = area.start + usize::from(at) % (area.len() - len + 1);
        start..start + len
    }
}
