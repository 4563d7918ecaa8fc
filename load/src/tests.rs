//! Tests of both loops beside each other, and of what becomes of their records.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::fake::{FakeClock, FakeServer};
use crate::task_set::tests::poll_to_end;
use crate::{ClosedLoop, MergeError, OpenLoop, Record, add_time};

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn open(rate: f64) -> OpenLoop {
    OpenLoop::at(rate)
        .warm_up(MILLISECOND)
        .time(20 * MILLISECOND)
}

fn closed() -> ClosedLoop {
    ClosedLoop::new()
        .warm_up(MILLISECOND)
        .time(20 * MILLISECOND)
}

/// Seeds of a random test, which a failure prints. `fastrand::seed` replays it.
fn seeds() -> impl Iterator<Item = u64> {
    (0..5).map(|_| fastrand::u64(..))
}

/// Panics, and prints the quantiles, unless they are within 5 %.
fn assert_near(measured: u64, planted: u64, what: &str) {
    let ratio = measured as f64 / planted as f64;
    assert!(
        (0.95..1.05).contains(&ratio),
        "{what}: {measured} ns measured, {planted} ns planted"
    );
}

#[test]
fn a_closed_loop_does_not_see_the_stall_that_an_open_loop_sees() {
    // A tenth of the time.
    let stall = 5 * MILLISECOND..7 * MILLISECOND;
    for callers in [1, 8] {
        let clock = FakeClock::default();
        let server = FakeServer::new(&clock, stall.clone());
        let callers = (0..callers).map(|_| async || server.call().await);
        let record = poll_to_end(closed().drive(clock.restarted(), callers, |_| None));
        assert!(record.response.len() > 10_000, "{record}");
        let p99 = record.response.value_at_quantile(0.99);
        assert!(p99 < 20_000, "eight calls of 1 µs: {record}");
    }
    for callers in [1, 1000] {
        let clock = FakeClock::default();
        let server = FakeServer::new(&clock, stall.clone());
        let callers = (0..callers).map(|_| async || server.call().await);
        let record = poll_to_end(open(1e5).drive(clock.restarted(), callers, |_| None));
        // The times in the stall are uniform from 0 to 2 ms, and the queue behind it is short.
        let p99 = record.response.value_at_quantile(0.99);
        assert_near(p99, 1_800_000, "p99 of the response time");
        let slices = record.slices.each.iter();
        let stalled = slices
            .filter(|slice| slice.response.max() > 100_000)
            .count();
        assert!(
            (6..=8).contains(&stalled),
            "a tenth of 60 slices: {stalled}"
        );
    }
}

#[test]
fn planted_delays_are_measured_by_both_loops() {
    for seed in seeds() {
        let clock = FakeClock::default();
        fastrand::seed(seed);
        let planted = RefCell::new(Vec::new());
        // One call in fifty takes up to 1 ms, the others take up to 20 µs.
        let call = async || {
            let most = if fastrand::u8(..50) == 0 { 1000 } else { 20 };
            let delay = MICROSECOND * fastrand::u32(1..=most);
            clock.delay(delay).await;
            planted.borrow_mut().push((delay, clock.now()));
            Ok::<_, &str>(())
        };
        let callers = || (0..200).map(|_| async || call().await);
        let plan = open(2e5).poisson().seed(seed).warm_up(Duration::ZERO);
        let open = poll_to_end(plan.drive(clock.restarted(), callers(), |_| None));
        let of_open = planted.take();
        let end = clock.now() + 10 * MILLISECOND;
        let plan = closed().warm_up(Duration::ZERO).time(10 * MILLISECOND);
        let closed = poll_to_end(plan.drive(clock.restarted(), callers().take(20), |_| None));
        // A closed loop does not record the calls that end after its time.
        let mut of_closed = planted.take();
        of_closed.retain(|(_, ended)| *ended < end);
        for (record, mut planted) in [(open, of_open), (closed, of_closed)] {
            planted.sort_unstable();
            for quantile in [0.5, 0.99] {
                let at = |quantile: f64| {
                    let (delay, _) = planted[(planted.len() as f64 * quantile) as usize];
                    delay.as_nanos() as u64
                };
                let measured = record.service.value_at_quantile(quantile);
                // A few calls at the end are planted and not recorded, which moves the quantile a little.
                let nearest = measured.clamp(at(quantile - 0.002), at(quantile + 0.002));
                let what = format!("seed {seed}, quantile {quantile}, {record}");
                assert_near(measured, nearest, &what);
            }
        }
    }
}

#[test]
fn failed_calls_are_counted_by_their_errors_and_are_in_no_latency() {
    let clock = FakeClock::default();
    let calls = Cell::new(0);
    let call = async || {
        calls.set(calls.get() + 1);
        match calls.get() % 10 {
            0 => Err("unavailable"),
            1 => {
                clock.delay(100 * MICROSECOND).await;
                Err("deadline exceeded")
            }
            _ => {
                clock.delay(MICROSECOND).await;
                Ok(())
            }
        }
    };
    let callers = || (0..100).map(|_| async || call().await);
    let count = |error: &str| Some(error.to_owned());
    let open = poll_to_end(open(1e5).drive(clock.restarted(), callers(), count));
    let closed = poll_to_end(closed().drive(clock.restarted(), callers(), count));
    for record in [&open, &closed] {
        let failures = &record.failures;
        assert_eq!(failures.count(), failures.kinds.values().sum::<u64>());
        assert!(failures.kinds["unavailable"] > 100, "{record}");
        assert!(failures.times.max() >= 100_000 && record.service.max() < 100_000);
        let of_slices: u64 = record.slices.each.iter().map(|slice| slice.failed).sum();
        assert_eq!(of_slices, failures.count());
        assert!(record.to_string().contains("times: deadline exceeded"));
    }
    assert_eq!(open.due(), 2000);
    assert_eq!(open.failures.count(), 400);
    assert!((open.achieved - 8e4).abs() < 100.0, "{open}");
}

#[test]
fn the_first_error_ends_a_loop_that_was_asked_for_it() {
    let callers = || (0..4).map(|_| async || Err::<(), _>("none of it"));
    let hour = Duration::from_secs(3600);
    let open = OpenLoop::at(1e6).poisson().seed(3).warm_up(Duration::ZERO);
    let open = poll_to_end(open.time(hour).try_run(callers()));
    let closed = poll_to_end(ClosedLoop::new().time(hour).try_run(callers()));
    for outcome in [open, closed] {
        assert_eq!(outcome.expect_err("every call fails"), "none of it");
    }
}

#[test]
fn a_loop_that_is_ended_early_returns_what_it_has() {
    let clock = FakeClock::default();
    // The server never answers again after 11 ms.
    let stall = 11 * MILLISECOND..Duration::from_secs(3600);
    let server = FakeServer::new(&clock, stall);
    let callers = || (0..8).map(|_| async || server.call().await);
    let begin = clock.now();
    let stop = || clock.reach(begin + 16 * MILLISECOND);
    let record = poll_to_end(
        open(1e5)
            .until(stop())
            .drive(clock.restarted(), callers(), |_| None),
    );
    let time = record.time.as_secs_f64();
    assert!((0.0149..0.0151).contains(&time), "{time}");
    assert_eq!(record.unanswered, 8);
    assert!((480..500).contains(&record.unsent), "{record}");
    let p99 = record.response.value_at_quantile(0.99);
    assert_near(p99, 4_850_000, "the calls that were waiting");
    assert!(
        (40..=46).contains(&record.slices.each.len()),
        "three quarters of 60"
    );
    assert!(
        record
            .to_string()
            .contains("in flight when the loop was ended: 8")
    );

    let clock = FakeClock::default();
    let server = FakeServer::new(&clock, 11 * MILLISECOND..Duration::from_secs(3600));
    let callers = (0..8).map(|_| async || server.call().await);
    let stop = clock.reach(16 * MILLISECOND);
    let record = poll_to_end(
        closed()
            .until(stop)
            .drive(clock.restarted(), callers, |_| None),
    );
    assert_eq!(record.unanswered, 8);
    assert!(
        record.response.max() > 4_900_000 && record.service.max() < 20_000,
        "{record}"
    );
}

#[test]
fn a_rate_that_cannot_be_offered_is_said() {
    let run = |rate| {
        let clock = FakeClock::default();
        let server = FakeServer::new(&clock, Duration::ZERO..Duration::ZERO);
        let callers = (0..4).map(|_| async || server.call().await);
        poll_to_end(open(rate).drive(clock.restarted(), callers, |_| None))
    };
    assert_eq!(run(1e5).shortfall(), None);
    let record = run(3e6);
    let shortfall = record.shortfall().expect("the server answers 1 M/s");
    assert_eq!((shortfall.due, shortfall.busy_callers), (60_000, Some(4)));
    assert!(
        record
            .to_string()
            .contains("the rate could not be offered: 3000000"),
        "{record}"
    );
    // A rate that no machine offers ends in its time, and each of its calls is counted.
    let record = run(1e15);
    let due = record.due() as f64;
    assert!((due / 2e13 - 1.0).abs() < 0.001, "{due}");
}

#[test]
fn callers_whose_calls_are_never_pending_take_turns() {
    let clock = FakeClock::default();
    let counts: Vec<Cell<u32>> = (0..3).map(Cell::new).collect();
    let callers = counts.iter().map(|count| {
        async || {
            count.set(count.get() + 1);
            Ok::<_, &str>(())
        }
    });
    poll_to_end(closed().drive(clock.restarted(), callers, |_| None));
    let counts = counts.iter().map(Cell::get);
    let (least, most) = (counts.clone().min(), counts.max());
    assert!(
        most.zip(least)
            .is_some_and(|(most, least)| most - least <= 3),
        "{most:?} {least:?}"
    );
}

/// A record of calls that took random times.
fn random_record() -> Record {
    let clock = FakeClock::default();
    let call = async || {
        let kind = fastrand::u8(..20);
        clock.delay(MICROSECOND * fastrand::u32(..200)).await;
        if kind < 3 {
            Err(format!("error {kind}"))
        } else {
            Ok(())
        }
    };
    let callers = (0..10).map(|_| async || call().await);
    poll_to_end(open(1e5).drive(clock.restarted(), callers, Some))
}

#[test]
fn a_record_that_was_written_and_read_is_the_same() {
    for seed in seeds() {
        fastrand::seed(seed);
        let record = random_record();
        let text = record.to_json();
        let read = Record::from_json(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(read == record, "seed {seed}: {text}");
    }
}

#[test]
fn merged_records_are_one_of_all_calls() {
    for seed in seeds() {
        fastrand::seed(seed);
        let records: Vec<Record> = (0..3).map(|_| random_record()).collect();
        let mut merged = records[0].clone();
        for record in &records[1..] {
            merged.merge(record).expect("they are of one plan");
        }
        let sum = |of: fn(&Record) -> u64| records.iter().map(of).sum::<u64>();
        assert_eq!(merged.due(), sum(Record::due), "seed {seed}");
        assert_eq!(merged.late, sum(|one| one.late), "seed {seed}");
        assert_eq!(
            merged.failures.kinds["error 1"],
            sum(|one| one.failures.kinds["error 1"])
        );
        assert_eq!(merged.wanted, Some(3e5));
        // The quantiles of the merged record are those of all recorded times.
        let mut all = crate::histogram();
        let each = records
            .iter()
            .flat_map(|record| record.response.iter_recorded());
        for step in each {
            for _ in 0..step.count_at_value() {
                add_time(&mut all, Duration::from_nanos(step.value_iterated_to()));
            }
        }
        assert!(merged.response == all, "seed {seed}");
        let of_slices = merged.slices.each.iter().map(|slice| slice.response.len());
        assert_eq!(of_slices.sum::<u64>(), all.len(), "seed {seed}");
    }
}

#[test]
fn records_of_different_plans_do_not_become_one() {
    let callers = || [async || Ok::<_, &str>(())];
    let clock = FakeClock::default();
    let mut open_record = poll_to_end(open(1e5).drive(clock.restarted(), callers(), |_| None));
    let before = open_record.clone();
    let closed = poll_to_end(closed().drive(clock.restarted(), callers(), |_| None));
    assert_eq!(open_record.merge(&closed), Err(MergeError::Loops));
    let longer = open(1e5).time(30 * MILLISECOND);
    let longer = poll_to_end(longer.drive(clock.restarted(), callers(), |_| None));
    let error = open_record.merge(&longer).expect_err("the slices differ");
    assert!(
        error.to_string().contains("planned for the same time"),
        "{error}"
    );
    assert!(open_record == before);
}

#[test]
fn texts_that_are_no_records_are_refused_with_the_reason() {
    let record = random_record().to_json();
    for (from, to, reason) in [
        (
            "\"version\":1",
            "\"version\":2",
            "version 2, and this program reads 1",
        ),
        ("\"significant_digits\":3", "\"significant_digits\":9", ""),
        ("{\"calls\":", "{\"calls\":1", "has counts for"),
    ] {
        let text = record.replacen(from, to, 1);
        assert_ne!(text, record, "{from}");
        let error = Record::from_json(&text)
            .expect_err("it is no record")
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
}
