//! Draws curves as SVG. It needs only [`Unit`], so that other programs can draw with it, too.
//!
//! ```
//! use benches::plot::{Axis, Curve, Plot, Scale};
//! use verbline_load::unit::Unit;
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

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use verbline_load::unit::Unit;

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
    /// The name.
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

/// Colours that also people with weak colour vision tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x44, 0x44, 0x44),
];

/// Few points are measurements that one wants to see; more of them are a line.
const FEW_POINTS: usize = 30;

impl Plot {
    /// Returns the drawing as the text of an SVG file.
    ///
    /// # Panics
    ///
    /// Never: nothing fails that is drawn into a text.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        let page = SVGBackend::with_string(&mut svg, (1200, 675)).into_drawing_area();
        self.draw(&page).expect("a text takes everything");
        drop(page);
        svg
    }

    fn draw<B: DrawingBackend>(
        &self,
        page: &DrawingArea<B, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
        const GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);
        let font = |size: u32| ("sans-serif", size).into_font().color(&GREY);
        page.fill(&WHITE)?;
        let page = page
            .margin(12, 0, 0, 0)
            .titled(&self.title, ("sans-serif", 24))?;
        let page = page.titled(&self.subtitle, font(15))?;
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let mut chart = ChartBuilder::on(&page)
            .margin(16)
            .x_label_area_size(60)
            .y_label_area_size(96)
            .build_cartesian_2d(
                Ruler::new(&self.x, points().map(|point| point.0)),
                Ruler::new(&self.y, points().map(|point| point.1)),
            )?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GREY)
            .label_style(("sans-serif", 15))
            .axis_desc_style(font(16))
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .draw()?;
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let points = curve.points.iter().copied();
            let points = points.filter(|(x, y)| x.is_finite() && y.is_finite());
            let dots = if curve.points.len() <= FEW_POINTS {
                4
            } else {
                0
            };
            let style = colour.filled().stroke_width(2);
            chart
                .draw_series(LineSeries::new(points, style).point_size(dots))?
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(("sans-serif", 16))
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .draw()?;
        page.present()
    }
}

/// An axis with the range of its values.
struct Ruler<'a> {
    axis: &'a Axis,
    range: Range<f64>,
}

/// Maps a value to where it lies on a straight ruler.
fn bend(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => value.max(f64::MIN_POSITIVE).log10(),
        Scale::Percentile => -(1.0 - value.clamp(0.0, 1.0 - 1e-9)).log10(),
    }
}

impl<'a> Ruler<'a> {
    fn new(axis: &'a Axis, values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|value| value.is_finite());
        let values = values.filter(|value| axis.scale != Scale::Log || *value > 0.0);
        let (least, most) = values
            .map(|value| (value, value))
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
            .unwrap_or((1.0, 1.0));
        let range = match axis.scale {
            Scale::Linear => 0.0..most.max(f64::MIN_POSITIVE) * 1.04,
            Scale::Log => least / 1.1..most * 1.1,
            Scale::Percentile => 0.0..most.clamp(0.5, 1.0 - 1e-9),
        };
        Self { axis, range }
    }

    fn straight(&self) -> RangedCoordf64 {
        let bend = |value| bend(self.axis.scale, value);
        (bend(self.range.start)..bend(self.range.end)).into()
    }

    /// Round values in equal ratios, as many as an axis has room for.
    fn log_ticks(&self) -> Vec<f64> {
        const ROOM: usize = 10;
        let divisions: &[(f64, &[f64])] = match self.axis.unit {
            Unit::Bytes => &[
                (2.0, &[1.0]),
                (4.0, &[1.0]),
                (16.0, &[1.0]),
                (256.0, &[1.0]),
            ],
            _ => &[
                (10.0, &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]),
                (10.0, &[1.0, 2.0, 5.0]),
                (10.0, &[1.0]),
                (1000.0, &[1.0]),
            ],
        };
        let ticks = |(base, factors): &(f64, &[f64])| -> Vec<f64> {
            let exponent = |value: f64| value.log(*base).floor() as i32;
            let exponents = exponent(self.range.start)..=exponent(self.range.end);
            let of = |exponent| {
                factors
                    .iter()
                    .map(move |factor| factor * base.powi(exponent))
            };
            let all = exponents.flat_map(of);
            all.filter(|tick| self.range.contains(tick)).collect()
        };
        let mut divided = divisions.iter().map(ticks);
        divided
            .find(|ticks| ticks.len() <= ROOM)
            .unwrap_or_default()
    }
}

impl Ranged for Ruler<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let value = bend(self.axis.scale, *value);
        self.straight().map(&value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self.axis.scale {
            Scale::Linear => self.straight().key_points(hint),
            Scale::Log => self.log_ticks(),
            Scale::Percentile => {
                let nines = (1..10).map(|nines| 1.0 - 10f64.powi(-nines));
                let nines = nines.take_while(|quantile| *quantile <= self.range.end);
                [0.0, 0.5].into_iter().chain(nines).collect()
            }
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Ruler<'_> {
    fn format_ext(&self, value: &f64) -> String {
        if self.axis.scale != Scale::Percentile {
            return self.axis.unit.label(*value);
        }
        let text = format!("{:.6}", value * 100.0);
        format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::BoldPoints;

    use super::*;

    /// The ticks of a ruler of 100 pixels: their places and labels.
    fn ticks(unit: Unit, scale: Scale, values: &[f64]) -> Vec<(i32, String)> {
        let axis = Axis::new("", unit, scale);
        let ruler = Ruler::new(&axis, values.iter().copied());
        let ticks = ruler.key_points(BoldPoints(10)).into_iter();
        ticks
            .map(|tick| (ruler.map(&tick, (0, 100)), ruler.format_ext(&tick)))
            .collect()
    }

    fn labels(unit: Unit, scale: Scale, values: &[f64]) -> Vec<String> {
        ticks(unit, scale, values)
            .into_iter()
            .map(|tick| tick.1)
            .collect()
    }

    #[test]
    fn each_nine_of_a_percentile_has_the_same_width() {
        let ticks = ticks(Unit::Share, Scale::Percentile, &[0.0, 0.999]);
        let expected = [
            (0, "0 %"),
            (10, "50 %"),
            (33, "90 %"),
            (66, "99 %"),
            (100, "99.9 %"),
        ];
        assert_eq!(
            ticks,
            expected.map(|(place, label)| (place, label.to_owned()))
        );
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(
            labels(Unit::Number, Scale::Linear, &[950.0]),
            [
                "0", "100", "200", "300", "400", "500", "600", "700", "800", "900"
            ]
        );
        assert_eq!(
            labels(Unit::Bytes, Scale::Log, &[1024.0, 8192.0]),
            ["1 KiB", "2 KiB", "4 KiB", "8 KiB"]
        );
        assert_eq!(
            labels(Unit::Number, Scale::Log, &[90.0, 2e6]),
            ["100", "1000", "10000", "100000", "1000000"]
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
}
