//! Sends of unreliable queue pairs that have not been carried out yet.

use std::collections::VecDeque;

use crate::provider::work::{Sge, Work};

/// Requests that have not been carried out yet: while they are being posted, and in SQD. They
/// already occupy entries of the send queue.
pub(crate) type Waiting = VecDeque<WaitingSend>;

#[derive(Debug)]
pub(crate) struct WaitingSend {
    pub(crate) work: Work,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Elements(Box<[Sge]>),
    /// A copy of inline bytes.
    Bytes(Vec<u8>),
}
