//! Draws curves as SVG. It needs only [`Unit`], so that other programs can draw with it, too.
//!
//! ```
//! use benches::plot::{Axis, Curve, Plot, Scale};
//! use benches::unit::Unit;
//!
//! let plot = Plot {
//!     title: "Goodput against offered load".to_owned(),
//!     subtitle: "device soft".to_owned(),
//!     x: Axis::new("offered", Unit::PerSecond, Scale::Linear),
//!     y: Axis::new("good", Unit::PerSecond, Scale::Linear),
//!     curves: vec![Curve::new("local client", [(500.0, 500.0), (2000.0, 950.0)])],
//! };
//! assert!(plot.to_svg().starts_with("<svg"));
//! ```

use std::fmt::Write as _;

use crate::unit::Unit;

/// Curves over two axes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What is drawn.
    pub title: String,
    /// Under which conditions; one line.
    pub subtitle: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves, each in a colour of its own.
    pub curves: Vec<Curve>,
}

/// What an axis measures, and how it is divided.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity.
    pub label: String,
    /// Its unit.
    pub unit: Unit,
    /// Its division.
    pub scale: Scale,
}

/// The division of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal distances are equal differences. The axis begins at zero.
    Linear,
    /// Equal distances are equal ratios. Values are above zero.
    Log,
    /// The axis of HdrHistogram's plots: values are quantiles from 0 to below 1, and 90 %, 99 % and
    /// 99.9 % have equal distances.
    Percentile,
}

/// A named line through points.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The name, which stands at the end of the line.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

impl Axis {
    /// Creates an axis.
    #[must_use]
    pub fn new(label: &str, unit: Unit, scale: Scale) -> Self {
        let label = label.to_owned();
        Self { label, unit, scale }
    }
}

impl Curve {
    /// Creates a curve.
    #[must_use]
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points: points.into_iter().collect(),
        }
    }
}

/// The width, unless the names of the curves need more.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;

/// The frame of the curves: left, top, right, bottom. The names of the curves are right of it.
const FRAME: [f64; 4] = [84.0, 96.0, 740.0, 476.0];

/// Width of a letter of a curve's name, at most on average.
const LETTER: f64 = 8.2;

/// Height of a line of text beside the curves.
const LINE: f64 = 18.0;

/// Colours that also people with weak colour vision tell apart (Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444",
];

const STYLE: &str = "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;\
    fill:#333}.title{font-size:19px;font-weight:600;fill:#111}.faint{fill:#666}\
    .grid{stroke:#e4e4e4}.fine{stroke:#f2f2f2}.axis{stroke:#888}\
    .curve{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}";

/// An axis with the range of its values and its place on the page.
struct Ruler {
    scale: Scale,
    /// The least and the largest value, after [`bend`].
    range: (f64, f64),
    /// Where these two lie on the page.
    place: (f64, f64),
}

/// Maps a value to where it lies on a straight ruler.
fn bend(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => value.max(f64::MIN_POSITIVE).log10(),
        Scale::Percentile => -(1.0 - value.clamp(0.0, 1.0 - 1e-9)).log10(),
    }
}

impl Ruler {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, place: (f64, f64)) -> Self {
        let values = values.filter(|value| value.is_finite());
        let values = values.filter(|value| scale != Scale::Log || *value > 0.0);
        let mut least = f64::INFINITY;
        let mut most = f64::NEG_INFINITY;
        for value in values.map(|value| bend(scale, value)) {
            (least, most) = (least.min(value), most.max(value));
        }
        if least > most {
            (least, most) = (0.0, 1.0);
        }
        if scale != Scale::Log {
            least = 0.0;
        }
        let room = ((most - least) * 0.04).max(1e-3);
        match scale {
            Scale::Linear => most += room,
            Scale::Log => (least, most) = (least - room, most + room),
            Scale::Percentile => {}
        }
        Self {
            scale,
            range: (least, most.max(least + 1e-6)),
            place,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let (least, most) = self.range;
        let share = (bend(self.scale, value) - least) / (most - least);
        self.place.0 + share * (self.place.1 - self.place.0)
    }

    /// The values with a line and a label, and those with a fine line.
    fn ticks(&self, unit: Unit) -> (Vec<f64>, Vec<f64>) {
        let (least, most) = self.range;
        match self.scale {
            Scale::Linear => {
                let rough = most / 6.0;
                let decade = 10f64.powf(rough.log10().floor());
                let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
                let step = steps.into_iter().find(|step| *step >= rough);
                let step = step.unwrap_or(10.0 * decade);
                let count = (most / step).floor() as u32;
                (
                    (0..=count).map(|tick| f64::from(tick) * step).collect(),
                    vec![],
                )
            }
            Scale::Log if unit == Unit::Bytes => {
                let exponent = |value: f64| value / 2f64.log10();
                let exponents = exponent(least).ceil() as i32..=exponent(most).floor() as i32;
                let step = [1, 2, 4]
                    .into_iter()
                    .find(|step| exponents.clone().count() <= 9 * step);
                let step = step.unwrap_or(8) as i32;
                let exponents = exponents.filter(|exponent| exponent % step == 0);
                (
                    exponents.map(|exponent| 2f64.powi(exponent)).collect(),
                    vec![],
                )
            }
            Scale::Log => {
                let is_inside = |value: &f64| (least..=most).contains(&value.log10());
                let decades = least.floor() as i32..=most.ceil() as i32;
                let times = |factors: &[f64]| -> Vec<f64> {
                    let ticks = decades.clone().flat_map(|decade| {
                        let of = move |factor: &f64| factor * 10f64.powi(decade);
                        factors.iter().map(of).collect::<Vec<_>>()
                    });
                    ticks.filter(is_inside).collect()
                };
                let labelled: &[f64] = match most - least {
                    span if span < 1.5 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
                    span if span < 3.0 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let fine = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
                (times(labelled), times(&fine))
            }
            Scale::Percentile => {
                let nines =
                    (1..=(most + 1e-9).floor() as i32).map(|nines| 1.0 - 10f64.powi(-nines));
                ([0.0, 0.5].into_iter().chain(nines).collect(), vec![])
            }
        }
    }

    fn label(&self, unit: Unit, value: f64) -> String {
        if self.scale != Scale::Percentile {
            return unit.label(value);
        }
        let text = format!("{:.6}", value * 100.0);
        format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl Plot {
    /// Returns the drawing as the text of an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let [left, top, right, bottom] = FRAME;
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = Ruler::new(self.x.scale, points().map(|point| point.0), (left, right));
        let y = Ruler::new(self.y.scale, points().map(|point| point.1), (bottom, top));
        let longest = self
            .curves
            .iter()
            .map(|curve| curve.name.chars().count())
            .max();
        let names_end = right + 24.0 + LETTER * longest.unwrap_or(0) as f64;
        let width = names_end.max(WIDTH);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {HEIGHT}\" \
             width=\"{width:.0}\" height=\"{HEIGHT}\" role=\"img\">\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        text(&mut svg, (left, 36.0), "class=\"title\"", &self.title);
        text(&mut svg, (left, 58.0), "class=\"faint\"", &self.subtitle);
        self.draw_axes(&mut svg, &x, &y);
        let mut names = Vec::new();
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let points = curve.points.iter();
            let places: Vec<_> = points.map(|point| (x.at(point.0), y.at(point.1))).collect();
            draw_curve(&mut svg, &places, colour);
            if let Some(&(_, end)) = places.last() {
                names.push((end, curve.name.as_str(), *colour));
            }
        }
        draw_names(&mut svg, names);
        svg + "</svg>\n"
    }

    fn draw_axes(&self, svg: &mut String, x: &Ruler, y: &Ruler) {
        let [left, top, right, bottom] = FRAME;
        let ((x_ticks, x_fine), (y_ticks, y_fine)) = (x.ticks(self.x.unit), y.ticks(self.y.unit));
        for at in x_fine.into_iter().map(|value| x.at(value)) {
            line(svg, "fine", (at, top), (at, bottom));
        }
        for at in y_fine.into_iter().map(|value| y.at(value)) {
            line(svg, "fine", (left, at), (right, at));
        }
        for value in x_ticks {
            let at = x.at(value);
            line(svg, "grid", (at, top), (at, bottom));
            let label = x.label(self.x.unit, value);
            text(svg, (at, bottom + 20.0), "text-anchor=\"middle\"", &label);
        }
        for value in y_ticks {
            let at = y.at(value);
            line(svg, "grid", (left, at), (right, at));
            let label = y.label(self.y.unit, value);
            text(svg, (left - 10.0, at + 4.5), "text-anchor=\"end\"", &label);
        }
        line(svg, "axis", (left, bottom), (right, bottom));
        let below = ((left + right) / 2.0, bottom + 46.0);
        text(
            svg,
            below,
            "class=\"faint\" text-anchor=\"middle\"",
            &self.x.label,
        );
        text(svg, (20.0, top - 10.0), "class=\"faint\"", &self.y.label);
    }
}

fn draw_curve(svg: &mut String, places: &[(f64, f64)], colour: &str) {
    let path: Vec<String> = places
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline class=\"curve\" stroke=\"{colour}\" points=\"{}\"/>",
        path.join(" ")
    );
    // Few points are measurements that one wants to see; many are a line.
    for (x, y) in places.iter().filter(|_| places.len() <= 30) {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\" fill=\"{colour}\"/>"
        );
    }
}

/// Writes each curve's name beside its end, and moves names apart that would cover each other.
fn draw_names(svg: &mut String, mut names: Vec<(f64, &str, &str)>) {
    let [_, top, right, bottom] = FRAME;
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut next = top;
    for (end, ..) in &mut names {
        *end = end.max(next);
        next = *end + LINE;
    }
    // Names that were moved below the frame push those above them up again.
    let mut next = bottom;
    for (end, ..) in names.iter_mut().rev() {
        *end = end.min(next);
        next = *end - LINE;
    }
    for (end, name, colour) in names {
        let style = format!("style=\"fill:{colour};font-weight:600\"");
        text(svg, (right + 12.0, end + 4.5), &style, name);
    }
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruler(scale: Scale, values: &[f64]) -> Ruler {
        Ruler::new(scale, values.iter().copied(), (0.0, 100.0))
    }

    #[test]
    fn each_nine_of_a_percentile_has_the_same_width() {
        let ruler = ruler(Scale::Percentile, &[0.0, 0.999]);
        let places = [0.0, 0.9, 0.99, 0.999].map(|quantile| ruler.at(quantile).round());
        assert_eq!(places, [0.0, 33.0, 67.0, 100.0]);
        let labels = ruler
            .ticks(Unit::Share)
            .0
            .into_iter()
            .map(|tick| ruler.label(Unit::Number, tick));
        let labels: Vec<_> = labels.collect();
        assert_eq!(labels, ["0 %", "50 %", "90 %", "99 %", "99.9 %"]);
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(
            ruler(Scale::Linear, &[950.0]).ticks(Unit::Number).0,
            [0.0, 200.0, 400.0, 600.0, 800.0]
        );
        let sizes = ruler(Scale::Log, &[1024.0, 8192.0]).ticks(Unit::Bytes).0;
        assert_eq!(sizes, [1024.0, 2048.0, 4096.0, 8192.0]);
        assert_eq!(
            ruler(Scale::Log, &[90.0, 2e6]).ticks(Unit::Number).0,
            [1e2, 1e3, 1e4, 1e5, 1e6]
        );
    }

    #[test]
    fn a_drawing_without_points_or_with_equal_ones_has_only_finite_numbers() {
        for points in [vec![], vec![(1.0, 1.0)], vec![(2.0, 3.0); 4]] {
            for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
                let plot = Plot {
                    title: "a < b & c".to_owned(),
                    subtitle: String::new(),
                    x: Axis::new("x", Unit::Number, scale),
                    y: Axis::new("y", Unit::Nanoseconds, Scale::Log),
                    curves: vec![Curve::new("one", points.clone())],
                };
                let svg = plot.to_svg();
                assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"));
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }

    #[test]
    fn names_at_the_same_height_do_not_cover_each_other() {
        let mut svg = String::new();
        draw_names(
            &mut svg,
            vec![(470.0, "a", "red"), (471.0, "b", "red"), (90.0, "c", "red")],
        );
        let heights: Vec<f64> = svg
            .lines()
            .filter_map(|line| line.split("y=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(heights.len(), 3);
        assert!(
            heights.windows(2).all(|pair| pair[1] - pair[0] >= LINE),
            "{heights:?}"
        );
    }
}
