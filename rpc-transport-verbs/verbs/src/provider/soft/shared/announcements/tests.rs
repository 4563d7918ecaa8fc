use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

proptest! {
    /// The model: a queue, and whether something did not fit.
    #[test]
    fn what_is_announced_is_taken_in_order_or_any_ring_is(
        steps in proptest::collection::vec(prop_oneof![2 => (0..100_usize).prop_map(Some), 1 => Just(None)], 0..400),
    ) {
        let page = Announcements::<8>::new();
        let (mut announcer, mut announced) = (Announcer::default(), Announced::default());
        let (mut queue, mut lost) = (VecDeque::new(), false);
        for step in steps {
            match step {
                Some(ring) => {
                    let before = announcer.next;
                    announcer.announce(&page, ring);
                    match announcer.next == before {
                        true => lost = true,
                        false => queue.push_back(ring),
                    }
                    prop_assert!(queue.len() <= 8 && (!lost || !queue.is_empty()));
                }
                None => match (announced.next(&page), queue.pop_front()) {
                    (Some(Announcement::Ring(ring)), expected) => prop_assert_eq!(Some(ring as usize), expected),
                    (Some(Announcement::Any), Some(_)) => {
                        prop_assert!(lost);
                        lost = false;
                    }
                    (found, expected) => prop_assert_eq!((found, expected), (None, None)),
                },
            }
        }
        while announced.next(&page).is_some_and(|found| found != Announcement::Any || std::mem::take(&mut lost)) {}
        prop_assert!(!lost);
    }

    /// Whatever a peer writes, a look takes one entry, and each side stays within the page.
    #[test]
    fn a_page_of_garbage_is_harmless(words in proptest::collection::vec(any::<u32>(), 10), sent in 0..40_usize) {
        let page = Announcements::<8>::new();
        for (word, garbage) in page.entries.iter().zip(&words) {
            word.store(*garbage as u16, Ordering::Relaxed);
        }
        page.taken.0.store(words[8], Ordering::Relaxed);
        page.overflow.0.store(words[9], Ordering::Relaxed);
        let (mut announcer, mut announced) = (Announcer::default(), Announced::default());
        for ring in 0..sent {
            announcer.announce(&page, ring);
            announced.next(&page);
        }
    }
}

#[test]
fn counts_wrap_around() {
    let page = Announcements::<2>::new();
    let (mut announcer, mut announced) = (Announcer::default(), Announced::default());
    // A hundred entries before the counts begin anew, and at the beginning of an odd lap, as in fresh memory.
    let start = Count(u32::MAX - 99);
    page.taken.0.store(start.0, Ordering::Relaxed);
    (announcer.next, announcer.taken, announced.next) = (start, start, start);
    for ring in 0..200_usize {
        assert_eq!(announced.next(&page), None);
        announcer.announce(&page, ring);
        assert_eq!(announced.next(&page), Some(Announcement::Ring(ring as u32)));
    }
}
