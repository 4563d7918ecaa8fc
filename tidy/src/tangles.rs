//! Circles of files that [call each other](crate::calls), and types whose methods stand in many files:
//! how large they are, and the ceilings that they stay below.

use std::collections::{BTreeMap, BTreeSet};

use crate::Violation;
use crate::calls::{Arrow, arrows};
use crate::definitions::{Definitions, Owner};
use crate::imports::{self, Import};
use crate::source::Crate;

/// The most files of a crate that a circle in one folder, or a type, may have.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// The most files.
    pub files: usize,
    /// The crate.
    pub package: &'static str,
    /// The folder or the type, as a path from the crate's root.
    pub name: &'static str,
}

const fn at_most(files: usize, package: &'static str, name: &'static str) -> Ceiling {
    Ceiling {
        files,
        package,
        name,
    }
}

include!("ceilings.rs");

/// Files of a type that need no ceiling.
pub const MAX_FILES: usize = 4;

/// How many files more than today a ceiling allows.
pub const GROWTH: usize = 2;

/// Where the ceilings stand.
const TABLE: &str = "tidy/src/ceilings.rs";

/// A circle or a type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tangle {
    /// The folder that all files of a circle are in, or the type, as a path from the crate's root.
    pub name: String,
    /// The modules of its files.
    pub modules: BTreeSet<Vec<String>>,
    /// How many of the files have inherent impls of the type; 0 for a circle.
    pub inherent: usize,
}

/// The circles and the types of a crate.
pub struct Tangles<'a> {
    source: &'a Crate,
    arrows: Vec<Arrow>,
    /// The circles, the largest of a folder first.
    pub circles: Vec<Tangle>,
    /// The types in more than [`MAX_FILES`] files.
    pub types: Vec<Tangle>,
}

impl<'a> Tangles<'a> {
    /// Finds them in a crate.
    #[must_use]
    pub fn of(source: &'a Crate) -> Self {
        let definitions = Definitions::of(source);
        let arrows = arrows(source, &definitions);
        let module = |file: &usize| source.files[*file].module.clone();
        let large = |owner: &&Owner| owner.files.len() > MAX_FILES;
        let name = |owner: &Owner| {
            let path = owner.module.iter().chain([&owner.name]);
            path.map(String::as_str).collect::<Vec<_>>().join("::")
        };
        let types = definitions.owners.iter().filter(large).map(|owner| Tangle {
            name: name(owner),
            modules: owner.files.iter().map(module).collect(),
            inherent: owner.inherent.len(),
        });
        let mut types: Vec<Tangle> = types.collect();
        types.sort();
        let mut circles: Vec<Tangle> = circles(source, &arrows).into_iter().map(circle).collect();
        circles.sort_by_key(|circle| (circle.name.clone(), usize::MAX - circle.modules.len()));
        Self {
            source,
            arrows,
            circles,
            types,
        }
    }

    /// Violations of ceilings: what is above its own or has none, and ceilings that are too high.
    #[must_use]
    pub fn violations(&self, circles: &[Ceiling], types: &[Ceiling]) -> Vec<Violation> {
        let mut violations = Vec::new();
        for circle in &self.circles {
            let most = ceiling(circles, &self.source.name, &circle.name).unwrap_or(1);
            if circle.modules.len() > most {
                violations.extend(self.calls_that_close(circle, most));
            }
        }
        for found in &self.types {
            let most = ceiling(types, &self.source.name, &found.name).unwrap_or(MAX_FILES);
            if found.modules.len() > most {
                violations.push(self.too_spread(found, most));
            }
        }
        violations.extend(self.too_high(circles, &self.circles));
        violations.extend(self.too_high(types, &self.types));
        violations
    }

    /// The calls that make a circle larger than `most`.
    fn calls_that_close(&self, circle: &Tangle, most: usize) -> Vec<Violation> {
        let is_inside = |file: usize| circle.modules.contains(&self.source.files[file].module);
        let inside = self.arrows.iter();
        let inside: Vec<Arrow> = inside
            .filter(|arrow| is_inside(arrow.from) && is_inside(arrow.to))
            .cloned()
            .collect();
        let closing = self.closing_pairs(&inside, most);
        let calls = inside.iter().filter(|arrow| closing.contains(&pair(arrow)));
        calls
            .map(|arrow| Violation {
                file: self.source.files[arrow.from].path.clone(),
                line: arrow.line,
                message: format!(
                    "calls {} in {}, which leads back here: a circle of {} files in {}, at most {most} \
                     are allowed. If this call is new, let a file above both make it, or give the state \
                     that both change a type whose methods return what is to be done next",
                    arrow.called,
                    self.source.files[arrow.to].path.display(),
                    circle.modules.len(),
                    circle.name,
                ),
            })
            .collect()
    }

    /// The pairs of files without whose calls a circle would have at most `most` files. If there is no
    /// such pair, those of the files that the fewest pairs tie to the circle.
    fn closing_pairs(&self, circle: &[Arrow], most: usize) -> BTreeSet<(usize, usize)> {
        let pairs: BTreeSet<(usize, usize)> = circle.iter().map(pair).collect();
        let closes = |without: &(usize, usize)| {
            let others = circle.iter().filter(|arrow| pair(arrow) != *without);
            let left = circles(self.source, &others.cloned().collect::<Vec<_>>());
            left.iter().all(|circle| circle.len() <= most)
        };
        let closing: BTreeSet<_> = pairs.iter().copied().filter(closes).collect();
        if !closing.is_empty() {
            return closing;
        }
        let mut ties: BTreeMap<usize, usize> = BTreeMap::new();
        for file in pairs.iter().flat_map(|pair| [pair.0, pair.1]) {
            *ties.entry(file).or_default() += 1;
        }
        let fewest = ties.values().min().copied();
        let is_loose = |file: usize| ties.get(&file).copied() == fewest;
        let loose = pairs.into_iter();
        loose
            .filter(|pair| is_loose(pair.0) || is_loose(pair.1))
            .collect()
    }

    /// The rows of a table: what it is, its files, those with inherent impls, and the ceiling.
    #[must_use]
    pub fn rows(&self) -> String {
        let row = |found: &Tangle, ceilings: &[Ceiling], without: usize, kind: &str| {
            let (package, name, files) = (&self.source.name, &found.name, found.modules.len());
            let most = ceiling(ceilings, package, name).unwrap_or(without);
            format!(
                "| {package} | {kind} | {name} | {files} | {} | {most} |\n",
                found.inherent
            )
        };
        let circles = self
            .circles
            .iter()
            .map(|found| row(found, CIRCLES, 1, "circle"));
        let types = self
            .types
            .iter()
            .map(|found| row(found, TYPES, MAX_FILES, "type"));
        circles.chain(types).collect()
    }

    fn too_spread(&self, found: &Tangle, most: usize) -> Violation {
        let modules: Vec<String> = found
            .modules
            .iter()
            .map(|module| module.join("::"))
            .collect();
        Violation {
            file: self.source.files[0].path.clone(),
            line: 1,
            message: format!(
                "{}: its impls and the functions that take it by `&mut` stand in {} files, at most {most} are \
                 allowed. Give a part of its state a type of its own. The files: {}",
                found.name,
                modules.len(),
                modules.join(", "),
            ),
        }
    }

    /// Ceilings that nothing needs any more, so that what was made smaller stays so.
    fn too_high(&self, ceilings: &[Ceiling], found: &[Tangle]) -> Vec<Violation> {
        let ceilings = ceilings
            .iter()
            .filter(|ceiling| ceiling.package == self.source.name);
        let too_high = ceilings.filter_map(|ceiling| {
            let Ceiling {
                files,
                package,
                name,
            } = ceiling;
            let found = found.iter().find(|found| found.name == *name);
            let message = match found.map(|found| found.modules.len() + GROWTH) {
                None => format!("{package}: {name} needs no ceiling any more: take this row out"),
                Some(enough) if enough < *files => {
                    format!("{package}: {name} may have {files} files: lower it to {enough}")
                }
                Some(_) => return None,
            };
            Some(Violation {
                file: TABLE.into(),
                line: 1,
                message,
            })
        });
        too_high.collect()
    }
}

/// The most files of the circle or the type with this name, if it has a ceiling.
#[must_use]
pub fn ceiling(ceilings: &[Ceiling], package: &str, name: &str) -> Option<usize> {
    let mut ceilings = ceilings.iter().filter(|ceiling| ceiling.package == package);
    ceilings
        .find(|ceiling| ceiling.name == name)
        .map(|ceiling| ceiling.files)
}

fn pair(arrow: &Arrow) -> (usize, usize) {
    (arrow.from, arrow.to)
}

/// Circles among calls, as among imports: calls between a module and one inside it do not count.
fn circles(source: &Crate, arrows: &[Arrow]) -> Vec<BTreeSet<Vec<String>>> {
    let import = |arrow: &Arrow| Import {
        file: arrow.from,
        line: arrow.line,
        module: source.files[arrow.to].module.clone(),
    };
    imports::circles(source, &arrows.iter().map(import).collect::<Vec<_>>())
}

fn circle(modules: BTreeSet<Vec<String>>) -> Tangle {
    let (first, last) = (modules.first(), modules.last());
    let parts = first.into_iter().flatten().zip(last.into_iter().flatten());
    let folder = parts
        .take_while(|(one, other)| one == other)
        .map(|(part, _)| part.as_str());
    Tangle {
        name: folder.collect::<Vec<_>>().join("::"),
        modules,
        inherent: 0,
    }
}
