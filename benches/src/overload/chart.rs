//! Goodput against offered load, as text.

/// A point of the chart, in calls per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Calls offered.
    pub offered: f64,
    /// Calls that were good.
    pub good: f64,
}

/// Columns of the longest bar.
const WIDTH: f64 = 60.0;

/// Draws a bar for each point: `█` for good calls, `·` for the other calls that were offered. All
/// bars have the scale of the largest load. The mark `|` is at the capacity.
#[must_use]
pub fn draw(points: &[Point], capacity: f64) -> String {
    let most = points.iter().map(|point| point.offered).fold(1.0, f64::max);
    let column = |rate: f64| (rate / most * WIDTH).round() as usize;
    let mut text = String::new();
    for point in points {
        let (good, offered) = (column(point.good), column(point.offered));
        let bar = (0..=WIDTH as usize).map(|at| match at {
            at if at < good => '█',
            at if at == column(capacity) => '|',
            at if at < offered => '·',
            _ => ' ',
        });
        let bar: String = bar.collect();
        text += &format!(
            "{:>8.0} offered  {}  {:.0} good\n",
            point.offered, bar, point.good
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_share_one_scale_and_show_the_capacity() {
        let point = |offered, good| Point { offered, good };
        let text = draw(&[point(50.0, 50.0), point(200.0, 20.0)], 100.0);
        let lines: Vec<&str> = text.lines().collect();
        let count = |line: usize, symbol| lines[line].matches(symbol).count();
        assert_eq!((count(0, '█'), count(0, '·')), (15, 0));
        assert_eq!((count(1, '█'), count(1, '·')), (6, 53));
        assert!(lines.iter().all(|line| line.find('|').is_some()));
        assert!(lines[1].ends_with("20 good"), "{text}");
    }
}
