use proptest::prelude::*;

use super::*;
use crate::protocol::frame::Flags;

#[test]
fn a_budget_never_promises_more_than_it_has() {
    let mut budget = ReceiveBudget::new(10);
    assert!(budget.take(8));
    assert!(!budget.take(3));
    assert_eq!(budget.left(), 2);
    budget.release(1);
    assert!(budget.take(3));
    assert_eq!((budget.left(), budget.promised()), (0, 10));
}

#[test]
fn a_peer_that_breaks_the_rules_is_found_out() {
    let mut credits = SendCredits::new(4, 8);
    assert!(credits.add(5).is_err());
    assert_eq!(credits.add(4), Ok(()));
    let mut window = ReceiveWindow::new(1);
    assert_eq!(window.consume(), Ok(()));
    assert_eq!(window.consume(), Err(CreditError::NotGranted));
    assert_eq!(
        window.control_frame_acknowledged(),
        Err(CreditError::UnexpectedAck)
    );
}

#[test]
fn only_what_is_held_can_be_given_back_and_the_first_window_stays() {
    let mut window = ReceiveWindow::new(4);
    window.grow(8);
    let not_held = |returned, limit| Err(CreditError::NotHeld { returned, limit });
    assert_eq!(window.reclaim(5, 0), not_held(5, 4), "the rest is owed");
    assert_eq!(window.take_owed(), (8, Flags::NONE));
    assert_eq!(window.reclaim(9, 4), not_held(9, 8), "four stay");
    window.consume().unwrap();
    assert_eq!(window.reclaim(5, 4), Ok(5));
    assert_eq!((window.size(), window.granted()), (7, 6));
    window.release();
    assert_eq!(window.reclaim(2, 4), Ok(3), "and the one that is owed");
    assert_eq!((window.size(), window.granted(), window.owed()), (4, 4, 0));
    window.consume().unwrap();
    assert_eq!(window.reclaim(4, 0), not_held(4, 3), "one was used");
    assert_eq!(window.reclaim(u16::MAX, 0), not_held(65535, 3));
    assert_eq!(window.reclaim(3, 0), Ok(3));
    assert!(window.is_spent());
    assert_eq!(window.size(), 1);
}

proptest! {
    /// Whatever the order of requests, releases, frames, growth and returns, the client never
    /// holds more credits than there are receives for it, and no receive is lost.
    #[test]
    fn credits_are_conserved(initial in 1u32..20, steps in proptest::collection::vec(0u8..6, 0..400)) {
        let mut window = ReceiveWindow::new(initial);
        let mut credits = SendCredits::new(initial, 1000);
        let (mut held, mut promised) = (0, initial);
        for step in steps {
            match step {
                0 | 1 => if credits.take() {
                    window.consume().unwrap();
                    held += 1;
                },
                2 => if held > 0 {
                    held -= 1;
                    window.release();
                },
                3 => {
                    let (granted, _) = window.take_owed();
                    credits.add(granted).unwrap();
                }
                4 => if window.size() < 100 {
                    window.grow(1);
                    promised += 1;
                },
                _ => {
                    let returned = credits.take_surplus(initial);
                    let freed = window.reclaim(returned, initial).unwrap();
                    prop_assert!(freed >= u32::from(returned));
                    promised -= freed;
                }
            }
            prop_assert_eq!(window.size(), promised);
            prop_assert!(window.size() >= initial);
            prop_assert_eq!(window.granted(), credits.available());
            prop_assert_eq!(window.granted() + window.owed() + held, window.size());
        }
    }
}
