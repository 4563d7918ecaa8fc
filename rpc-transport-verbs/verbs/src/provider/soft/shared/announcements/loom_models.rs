use loom::sync::Arc;
use loom::thread;

use super::*;

const RINGS: usize = 3;
/// Fewer than there are rings, so that they are used up. Each taken entry is told.
const PLACES: usize = 2;

struct Shared {
    page: Announcements<PLACES>,
    messages: [AtomicU32; RINGS],
}

/// Takes what is announced now, and notes the messages that are found.
fn take(shared: &Shared, announced: &mut Announced, found: &mut [bool; RINGS]) {
    let has_message = |ring: usize| shared.messages[ring].load(Ordering::Relaxed) == 1;
    while let Some(announcement) = announced.next(&shared.page) {
        match announcement {
            Announcement::Ring(ring) => {
                let ring = ring as usize;
                assert!(has_message(ring), "an entry comes after its message");
                found[ring] = true;
            }
            Announcement::Any => {
                for (ring, found) in found.iter_mut().enumerate() {
                    *found |= has_message(ring);
                }
            }
        }
    }
}

/// Whatever the receiver has taken when the entries are used up, every message is found at last.
#[test]
fn loom_every_announced_message_is_found() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let shared = Arc::new(Shared {
            page: Announcements::new(),
            messages: std::array::from_fn(|_| AtomicU32::new(0)),
        });
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut announcer = Announcer::default();
                for ring in 0..RINGS {
                    shared.messages[ring].store(1, Ordering::Relaxed);
                    announcer.announce(&shared.page, ring);
                }
            })
        };
        let (mut announced, mut found) = (Announced::default(), [false; RINGS]);
        take(&shared, &mut announced, &mut found);
        take(&shared, &mut announced, &mut found);
        sender.join().unwrap();
        take(&shared, &mut announced, &mut found);
        assert_eq!(found, [true; RINGS]);
    });
}
