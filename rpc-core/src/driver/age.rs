//! [`ConnectionAge`]: a server ends connections that are old, so that clients connect again: to other servers,
//! too, and with the certificates of that time.
//!
//! An old connection is announced to its client, as in a shutdown: the client starts its next calls on
//! another one, and those that have begun end. It is closed when nothing is left of it, or when its grace
//! is over. Both are looked at with the maintenance of idle connections, each second at least: before
//! a sleep, and in some turns of a poller that is busy, as deadlines are.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// No two looks at the ages are closer than this. No sleep is longer, so one follows within twice of it.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How old a connection may be, and how long its calls may go on then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionAge {
    pub(crate) age: Duration,
    pub(crate) grace: Duration,
}

/// How far a connection has come to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    limits: ConnectionAge,
    phase: AgePhase,
}

#[derive(Clone, Copy, Debug)]
enum AgePhase {
    /// It is old from this moment on; `None`: never.
    Young(Option<Instant>),
    /// Its client was told, and it is closed at this moment at the latest; `None`: when it is finished.
    Old(Option<Instant>),
}

/// What is to be done with a connection at its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ageing {
    Nothing,
    /// Announce its end.
    GoAway,
    Close,
}

impl Lifetime {
    /// Begins the lifetime of a connection. It differs by up to a tenth from that of others, so that the
    /// clients of a server that has just started do not all connect again at once.
    pub(super) fn begin(limits: ConnectionAge, now: Instant) -> Self {
        let random = RandomState::new().hash_one(()) >> 11;
        let uniform = random as f64 / (1_u64 << 53) as f64;
        let age = limits.age.as_secs_f64() * (0.9 + 0.2 * uniform);
        // An age beyond the range of the clock is none.
        let age = Duration::try_from_secs_f64(age).ok();
        let phase = AgePhase::Young(age.and_then(|age| now.checked_add(age)));
        Self { limits, phase }
    }

    /// Looks at the time. `is_finished` tells whether nothing is left of a connection whose end was
    /// announced.
    pub(super) fn look(&mut self, now: Instant, is_finished: bool) -> Ageing {
        match self.phase {
            AgePhase::Young(Some(end)) if end <= now => {
                self.phase = AgePhase::Old(now.checked_add(self.limits.grace));
                Ageing::GoAway
            }
            AgePhase::Old(_) if is_finished => Ageing::Close,
            AgePhase::Old(Some(end)) if end <= now => Ageing::Close,
            AgePhase::Young(_) | AgePhase::Old(_) => Ageing::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn begin(age: Duration, now: Instant) -> Lifetime {
        let grace = 10 * SECOND;
        Lifetime::begin(ConnectionAge { age, grace }, now)
    }

    #[test]
    fn lifetimes_differ_by_a_tenth_at_most() {
        let (now, age) = (Instant::now(), 1000 * SECOND);
        let ends: Vec<_> = (0..100)
            .map(|_| match begin(age, now).phase {
                AgePhase::Young(Some(end)) => end - now,
                other => panic!("{other:?}"),
            })
            .collect();
        let (least, most) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
        assert!(*least >= age * 9 / 10 && *most <= age * 11 / 10, "{ends:?}");
        assert!(*most - *least > age / 20, "a hundred differ: {ends:?}");
    }

    #[test]
    fn it_is_told_once_and_closed_when_nothing_is_left_or_after_its_grace() {
        let start = Instant::now();
        for is_finished in [true, false] {
            let mut lifetime = begin(SECOND, start);
            assert_eq!(lifetime.look(start, is_finished), Ageing::Nothing);
            let old = start + 2 * SECOND;
            assert_eq!(lifetime.look(old, false), Ageing::GoAway);
            assert_eq!(lifetime.look(old, false), Ageing::Nothing);
            let later = old + if is_finished { SECOND } else { 10 * SECOND };
            assert_eq!(lifetime.look(later, is_finished), Ageing::Close);
        }
        let mut lifetime = begin(Duration::MAX, start);
        assert_eq!(
            lifetime.look(start + 1_000_000 * SECOND, true),
            Ageing::Nothing
        );
    }
}
