//! Functions that several of the numbers need.

/// Returns the number of calls that the connections may have in flight, plus a control frame and an
/// acknowledgement for each connection.
pub(super) fn frames_in_flight(connections: u32, max_in_flight: u32) -> u32 {
    connections.saturating_mul(max_in_flight.saturating_add(2))
}

/// Returns the largest number from 1 to `most` for which `fits` is true, or 0 if there is none.
/// `fits` must be monotonic: once false, it is false for all larger numbers.
pub(super) fn largest(most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut fitting, mut end) = (0, most);
    while fitting < end {
        // Rounded up, so `middle` is larger than the largest number that is known to fit.
        let middle = fitting + (end - fitting).div_ceil(2);
        if fits(middle) {
            fitting = middle;
        } else {
            end = middle - 1;
        }
    }
    fitting
}
