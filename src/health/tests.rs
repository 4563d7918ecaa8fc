//! What the table of names holds, which clients do not see.

use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;

fn one_server(health: &Health) -> OneServer {
    OneServer {
        names: Arc::clone(&health.0),
        stage: AtomicU8::new(SERVING),
    }
}

/// Polls a watch until it waits, and returns the statuses that it has sent. `None` is its end.
fn poll(watch: &mut Watch<'_>, waker: &Waker) -> Vec<Option<ServingStatus>> {
    let mut watch = pin!(watch);
    let mut cx = Context::from_waker(waker);
    let mut sent = Vec::new();
    while let Poll::Ready(Some(item)) = watch.as_mut().poll_next(&mut cx) {
        let status = item.ok().map(|response| response.status());
        sent.push(status);
        if status.is_none() {
            break;
        }
    }
    sent
}

#[test]
fn nothing_is_left_of_watchers_that_leave() {
    let health = Health::new();
    let server = one_server(&health);
    let mut watches: Vec<_> = (0..10_000)
        .map(|number| server.watcher(&format!("unknown-{number}")))
        .collect();
    for watch in &mut watches {
        let sent = poll(watch, Waker::noop());
        assert_eq!(sent, [Some(ServingStatus::ServiceUnknown)]);
    }
    assert_eq!(health.0.lock().names.len(), 10_001);
    // Some become known and unknown again, and some of these while nobody looks.
    for (number, watch) in watches.iter_mut().enumerate().take(100) {
        let name = format!("unknown-{number}");
        health.set(&name, ServingStatus::Serving);
        if number % 2 == 0 {
            assert_eq!(poll(watch, Waker::noop()), [Some(ServingStatus::Serving)]);
        }
        health.set(&name, ServingStatus::ServiceUnknown);
    }
    drop(watches);
    let state = health.0.lock();
    assert_eq!(state.names.len(), 1);
    assert!(state.names[""].watchers.is_empty());
}

#[test]
fn a_change_wakes_those_who_watch_the_name_and_no_others() {
    #[derive(Default)]
    struct Counted(AtomicUsize);
    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let health = Health::new();
    let server = one_server(&health);
    let counts = [(); 2].map(|()| Arc::<Counted>::default());
    let mut watches = ["a", "b"].map(|name| server.watcher(name));
    for (watch, count) in watches.iter_mut().zip(&counts) {
        poll(watch, &Waker::from(Arc::clone(count)));
    }
    let woken = || {
        counts
            .each_ref()
            .map(|count| count.0.load(Ordering::Relaxed))
    };
    health.set("a", ServingStatus::Serving);
    assert_eq!(woken(), [1, 0]);
    // Nobody has looked since, so the next change wakes nobody, and the look gets the latest one.
    health.set("a", ServingStatus::NotServing);
    assert_eq!(woken(), [1, 0]);
    let waker = Waker::from(Arc::clone(&counts[0]));
    assert_eq!(
        poll(&mut watches[0], &waker),
        [Some(ServingStatus::NotServing)]
    );
    // What is set again is no change.
    health.set("a", ServingStatus::NotServing);
    assert_eq!(woken(), [1, 0]);

    server.enter(STOPPING);
    assert_eq!(woken(), [2, 1]);
    assert_eq!(poll(&mut watches[0], &waker), []);
    server.enter(FINISHING);
    assert_eq!(poll(&mut watches[0], &waker), [None]);
}
