//! Draws curves as SVG. What is drawn needs not be a record.
//!
//! ```
//! use verbline_load::plot::{Axis, Curve, Plot, Scale};
//! use verbline_load::unit::Unit;
//!
//! let plot = Plot {
//!     title: "Goodput against offered load".to_owned(),
//!     subtitle: "device soft".to_owned(),
//!     x: Axis::new("offered", Unit::PerSecond, Scale::Linear),
//!     y: Axis::new("good", Unit::PerSecond, Scale::Linear),
//!     curves: vec![Curve::new("local client", [(500.0, 500.0), (2000.0, 950.0)])],
//!     marks: Vec::new(),
//!     rule: None,
//! };
//! assert!(plot.to_svg().starts_with("<svg"));
//! ```

mod ruler;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use self::ruler::{Ruler, bend};
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
    /// The curves. Each has a colour, a pattern of dashes and a marker of its own, so that they can be told
    /// apart without colours.
    pub curves: Vec<Curve>,
    /// Rows of marks at the lower end.
    pub marks: Vec<Marks>,
    /// A vertical line.
    pub rule: Option<Rule>,
}

/// Places on the horizontal axis at which something has happened.
#[derive(Clone, Debug)]
pub struct Marks {
    /// What has happened.
    pub name: String,
    /// Where.
    pub at: Vec<f64>,
}

/// A vertical line with a text.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Where it stands.
    pub at: f64,
    /// What it says.
    pub label: String,
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

/// Pixels of a drawing.
const WIDTH: u32 = 1200;
const HEIGHT: u32 = 675;

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

/// Few points are measurements that one wants to see, each with a marker. Of more, so many have one.
const MARKERS: usize = 12;

/// Lengths of a dash and of the gap behind it, in pixels. The first line has none.
const DASHES: [Option<(u32, u32)>; 4] = [None, Some((12, 6)), Some((3, 5)), Some((20, 5))];

/// Forms of markers.
const FORMS: [Form; 4] = [Form::Circle, Form::Triangle, Form::Cross, Form::Square];

#[derive(Clone, Copy)]
enum Form {
    Circle,
    Triangle,
    Cross,
    Square,
}

impl Form {
    /// Returns the corners of the marker around a place, in pixels.
    fn around(self, (x, y): (i32, i32)) -> Vec<(i32, i32)> {
        let corners: &[(i32, i32)] = match self {
            Self::Circle => &[
                (-5, -2),
                (-2, -5),
                (2, -5),
                (5, -2),
                (5, 2),
                (2, 5),
                (-2, 5),
                (-5, 2),
            ],
            Self::Triangle => &[(-6, 5), (0, -6), (6, 5)],
            Self::Square => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
            Self::Cross => &[
                (-6, -4),
                (-4, -6),
                (0, -2),
                (4, -6),
                (6, -4),
                (2, 0),
                (6, 4),
                (4, 6),
                (0, 2),
                (-4, 6),
                (-6, 4),
                (-2, 0),
            ],
        };
        corners
            .iter()
            .map(|(right, down)| (x + right, y + down))
            .collect()
    }
}

impl Look {
    /// The marker around a place, in pixels.
    fn marker(self, place: (i32, i32)) -> Polygon<(i32, i32)> {
        Polygon::new(self.form.around(place), self.colour.filled())
    }
}

impl Plot {
    /// Returns the drawing as the text of an SVG file.
    ///
    /// # Panics
    ///
    /// Never: nothing fails that is drawn into a text.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        let page = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        self.draw(&page).expect("a text takes everything");
        drop(page);
        // No document has them, and a name may.
        svg.retain(|c| !c.is_control() || c == '\n');
        svg
    }

    fn draw<B: DrawingBackend>(
        &self,
        page: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        page.fill(&WHITE)?;
        let page = page
            .margin(12, 0, 0, 0)
            .titled(&self.title, ("sans-serif", 26))?;
        let page = page.titled(&self.subtitle, font(17))?;
        let legend = Legend::of(self);
        let (strip, page) = page.split_vertically(legend.height());
        legend.draw(&strip)?;
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let marked = self.marks.iter().flat_map(|marks| &marks.at);
        let x = points().map(|point| &point.0).chain(marked);
        let x = Ruler::new(
            &self.x,
            x.chain(self.rule.iter().map(|rule| &rule.at)).copied(),
        );
        let y = Ruler::new(&self.y, points().map(|point| point.1));
        let (left, right) = (x.range.start, x.range.end);
        let (lower, upper) = (y.range.start, y.range.end);
        let mut chart = ChartBuilder::on(&page)
            .margin(16)
            .margin_right(40)
            .x_label_area_size(60)
            .y_label_area_size(96)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GREY)
            .label_style(("sans-serif", 17))
            .axis_desc_style(font(18))
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .draw()?;
        for (index, curve) in self.curves.iter().enumerate() {
            let look = Look::of(index);
            let points = curve.points.iter().copied();
            let points: Vec<_> = points
                .filter(|(x, y)| x.is_finite() && y.is_finite())
                .collect();
            let markers = points.iter().step_by(points.len().div_ceil(MARKERS).max(1));
            chart
                .draw_series(markers.map(|&place| EmptyElement::at(place) + look.marker((0, 0))))?;
            let style = look.colour.stroke_width(2);
            match look.dashes {
                None => {
                    chart.draw_series(LineSeries::new(points, style))?;
                }
                Some((dash, gap)) => {
                    let dashed = DashedLineSeries::new(points, dash, gap, style);
                    chart.draw_series(dashed)?;
                }
            }
        }
        for (row, marks) in self.marks.iter().enumerate() {
            let look = Look::of_marks(row);
            let above = -10 - 14 * row as i32;
            chart.draw_series(
                marks
                    .at
                    .iter()
                    .map(|&at| EmptyElement::at((at, lower)) + look.marker((0, above))),
            )?;
        }
        if let Some(rule) = &self.rule {
            let line = PathElement::new([(rule.at, lower), (rule.at, upper)], GREY.stroke_width(2));
            chart.draw_series([line])?;
            // The text stands where there is more room.
            let is_left = bend(self.x.scale, rule.at) - bend(self.x.scale, left)
                < bend(self.x.scale, right) - bend(self.x.scale, rule.at);
            let (side, shift) = match is_left {
                true => (HPos::Left, 8),
                false => (HPos::Right, -8),
            };
            let style = font(17).pos(Pos::new(side, VPos::Top));
            let text = Text::new(rule.label.clone(), (shift, 4), style);
            chart.draw_series([EmptyElement::at((rule.at, upper)) + text])?;
        }
        page.present()
    }
}

const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
const GREY: RGBColor = RGBColor(0x55, 0x55, 0x55);

fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&GREY)
}

/// How a curve is drawn.
#[derive(Clone, Copy)]
struct Look {
    colour: RGBColor,
    dashes: Option<(u32, u32)>,
    form: Form,
}

impl Look {
    fn of(curve: usize) -> Self {
        Self {
            colour: COLOURS[curve % COLOURS.len()],
            dashes: DASHES[curve % DASHES.len()],
            form: FORMS[(curve + curve / FORMS.len()) % FORMS.len()],
        }
    }

    /// Marks are black.
    fn of_marks(row: usize) -> Self {
        Self {
            colour: BLACK,
            dashes: None,
            form: [Form::Cross, Form::Triangle][row % 2],
        }
    }
}

/// The names of the curves and marks, in lines above the drawing, so that they cover nothing.
struct Legend<'a> {
    /// Where a name begins, in pixels.
    entries: Vec<(i32, i32, Look, bool, &'a str)>,
}

impl<'a> Legend<'a> {
    const LINE: i32 = 26;
    const LEFT: i32 = 112;
    /// The sample of a line, and the gap behind it.
    const SAMPLE: i32 = 48;

    fn of(plot: &'a Plot) -> Self {
        let curves = plot.curves.iter().enumerate();
        let curves = curves.map(|(index, curve)| (Look::of(index), true, curve.name.as_str()));
        let marks = plot.marks.iter().enumerate();
        let marks = marks.map(|(row, marks)| (Look::of_marks(row), false, marks.name.as_str()));
        let (mut x, mut y) = (Self::LEFT, 0);
        let mut entries = Vec::new();
        for (look, is_line, name) in curves.chain(marks) {
            // About what a letter takes at this size.
            let width = Self::SAMPLE + 9 * name.chars().count() as i32 + 24;
            if x > Self::LEFT && x + width > WIDTH as i32 - 40 {
                (x, y) = (Self::LEFT, y + Self::LINE);
            }
            entries.push((x, y, look, is_line, name));
            x += width;
        }
        Self { entries }
    }

    fn height(&self) -> i32 {
        self.entries.last().map_or(0, |(_, y, ..)| y + Self::LINE)
    }

    fn draw<B: DrawingBackend>(
        &self,
        strip: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        for &(x, y, look, is_line, name) in &self.entries {
            let middle = y + Self::LINE / 2;
            if is_line {
                let line = [(x, middle), (x + Self::SAMPLE - 8, middle)];
                let style = look.colour.stroke_width(2);
                match look.dashes {
                    None => strip.draw(&PathElement::new(line, style))?,
                    Some((dash, gap)) => {
                        for element in DashedLineSeries::new(line, dash, gap, style) {
                            strip.draw(&element)?;
                        }
                    }
                }
            }
            let marker = (x + Self::SAMPLE / 2 - 4, middle);
            strip.draw(&look.marker(marker))?;
            let style = TextStyle::from(("sans-serif", 17).into_font());
            let style = style.pos(Pos::new(HPos::Left, VPos::Center));
            strip.draw(&Text::new(
                name.to_owned(),
                (x + Self::SAMPLE, middle),
                style,
            ))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    marks: vec![Marks {
                        name: "late".to_owned(),
                        at: vec![0.5],
                    }],
                    rule: Some(Rule {
                        at: 0.5,
                        label: "knee".to_owned(),
                    }),
                };
                let svg = plot.to_svg();
                assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"));
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }
}
