//! Unreliable queue pairs.

use super::super::{Sge, Work};
use super::domain::State;
use crate::verbs::{PostError, PostErrorReason};

impl State {
    pub(super) fn post_unreliable(
        &mut self,
        _place: u32,
        _list: &[Work],
        _elements: &[Sge],
    ) -> Result<(), PostError> {
        let reason = PostErrorReason::Refused { errno: 95 };
        Err(PostError { taken: 0, reason })
    }
}
