//! The numbers behind "is it getting better?": sizes, functions, asserts, SAFETY notes, circles and
//! documents of a checkout.

use std::fmt;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Block, Expr, ImplItemFn, ItemFn, ItemMod, Local, Macro, Signature, Stmt, TraitItemFn};

use crate::documents;
use crate::imports::{circles, imports};
use crate::source::{Crate, is_for_tests};
use crate::surface::public_items;
use crate::tangles::Tangles;

/// The folders of the crates that are measured: those that users depend on.
pub const PACKAGES: [&str; 8] = [
    "biased-lock",
    "rpc-core",
    "rpc-codegen",
    "rpc-transport-verbs",
    "rpc-transport-verbs/verbs",
    "tls",
    "gateway",
    "load",
];

/// Words below which a SAFETY note cannot name an invariant, who established it and how long it
/// holds.
const MIN_SAFETY_WORDS: usize = 6;

/// The figures of one checkout.
#[derive(Clone, Debug)]
pub struct Figures {
    crates: Vec<CrateFigures>,
    documents: Vec<(&'static str, usize, usize)>,
}

#[derive(Clone, Debug, Default)]
struct CrateFigures {
    name: String,
    files: usize,
    longest_file: usize,
    lines: usize,
    code_lines: usize,
    functions: Vec<usize>,
    asserts: usize,
    guards: usize,
    safety_notes: usize,
    short_safety_notes: usize,
    circles: usize,
    in_circles: usize,
    public_items: usize,
    /// Rows of a table.
    tangles: String,
}

impl Figures {
    /// Measures the checkout at `root`.
    ///
    /// # Panics
    ///
    /// If a file cannot be read or is not Rust.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        let documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
        Self {
            crates: PACKAGES
                .map(|name| CrateFigures::of(&Crate::read(root, name)))
                .to_vec(),
            documents: documents
                .map(|path| {
                    let text = documents::read(root, path);
                    (path, text.lines().count(), text.split_whitespace().count())
                })
                .to_vec(),
        }
    }
}

impl CrateFigures {
    fn of(source: &Crate) -> Self {
        let imports = imports(source);
        let circles = circles(source, &imports);
        let mut figures = Self {
            name: source.name.clone(),
            circles: circles.len(),
            in_circles: circles.iter().map(|circle| circle.len()).sum(),
            public_items: public_items(source).len(),
            guards: guards(source),
            tangles: Tangles::of(source).rows(),
            ..Self::default()
        };
        for file in source.files.iter().filter(|file| !file.is_generated()) {
            let lines = file.text.lines().count();
            figures.files += 1;
            figures.lines += lines;
            figures.longest_file = figures.longest_file.max(lines);
            figures.count_safety_notes(&file.text);
            if !file.is_test {
                let mut counter = Counter::default();
                counter.visit_file(&file.syntax);
                figures.functions.extend(counter.functions);
                figures.asserts += counter.asserts;
                let test_lines = counter.test_lines;
                let code = file.text.lines().filter(|line| {
                    let line = line.trim_start();
                    !line.is_empty() && !line.starts_with("//")
                });
                figures.code_lines += code.count().saturating_sub(test_lines);
            }
        }
        figures.functions.sort_unstable();
        figures
    }

    fn count_safety_notes(&mut self, text: &str) {
        let mut lines = text.lines().map(str::trim_start).peekable();
        while let Some(line) = lines.next() {
            let Some((_, note)) = line.split_once("SAFETY:") else {
                continue;
            };
            let mut words = note.split_whitespace().count();
            while let Some(more) = lines.next_if(|line| line.starts_with("//")) {
                words += more.trim_start_matches('/').split_whitespace().count();
            }
            self.safety_notes += 1;
            self.short_safety_notes += usize::from(words < MIN_SAFETY_WORDS);
        }
    }

    fn long_functions(&self) -> usize {
        self.functions.iter().filter(|&&lines| lines > 60).count()
    }

    fn rows(&self) -> [(&'static str, String); 13] {
        let functions = &self.functions;
        let median = functions.get(functions.len() / 2).copied().unwrap_or(0);
        let longest = functions.last().copied().unwrap_or(0);
        let per_thousand =
            |count: usize| format!("{:.1}", count as f64 * 1e3 / self.code_lines.max(1) as f64);
        [
            ("files", self.files.to_string()),
            ("longest file, lines", self.longest_file.to_string()),
            ("lines", self.lines.to_string()),
            ("lines of product code", self.code_lines.to_string()),
            ("functions", functions.len().to_string()),
            (
                "median and longest function, lines",
                format!("{median}, {longest}"),
            ),
            (
                "functions of more than 60 lines",
                self.long_functions().to_string(),
            ),
            (
                "asserts per 1,000 lines of product code",
                per_thousand(self.asserts),
            ),
            (
                "silent `else { return }` per 1,000 lines of product code",
                per_thousand(self.guards),
            ),
            ("SAFETY notes", self.safety_notes.to_string()),
            (
                "SAFETY notes of fewer than six words",
                self.short_safety_notes.to_string(),
            ),
            (
                "import circles (modules in them)",
                format!("{} ({})", self.circles, self.in_circles),
            ),
            ("public items", self.public_items.to_string()),
        ]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| |")?;
        for figures in &self.crates {
            write!(f, " {} |", figures.name)?;
        }
        writeln!(f, "\n| --- |{}", " ---: |".repeat(self.crates.len()))?;
        let columns: Vec<_> = self.crates.iter().map(CrateFigures::rows).collect();
        for row in 0..columns.first().map_or(0, |rows| rows.len()) {
            write!(f, "| {} |", columns[0][row].0)?;
            for column in &columns {
                write!(f, " {} |", column[row].1)?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "\n| crate | files that call each other, or of one type | | files | with inherent impls | at most |\n\
             | --- | --- | --- | ---: | ---: | ---: |"
        )?;
        for figures in &self.crates {
            write!(f, "{}", figures.tangles)?;
        }
        writeln!(f, "\n| document | lines | words |\n| --- | ---: | ---: |")?;
        for (path, lines, words) in &self.documents {
            writeln!(f, "| {path} | {lines} | {words} |")?;
        }
        Ok(())
    }
}

/// How often product code ends a function with `let … else { return }` and says nothing.
#[must_use]
pub fn guards(source: &Crate) -> usize {
    let files = source.product().filter(|file| !file.is_generated());
    let counts = files.map(|file| {
        let mut counter = Counter::default();
        counter.visit_file(&file.syntax);
        counter.guards
    });
    counts.sum()
}

/// Counts what a file's product code contains.
#[derive(Default)]
struct Counter {
    /// Lines of each function, from its signature to its last brace.
    functions: Vec<usize>,
    asserts: usize,
    /// `let … else { return }` that says nothing.
    guards: usize,
    /// Lines of modules for tests.
    test_lines: usize,
}

impl Counter {
    fn function(&mut self, signature: &Signature, body: &Block) {
        let first = signature.fn_token.span.start().line;
        let last = body.brace_token.span.close().end().line;
        self.functions.push(last - first + 1);
    }
}

impl<'ast> Visit<'ast> for Counter {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        } else if let Some((brace, _)) = &item.content {
            let (first, last) = (
                brace.span.open().start().line,
                brace.span.close().end().line,
            );
            self.test_lines += last - first + 1;
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        let otherwise = local.init.as_ref().and_then(|init| init.diverge.as_ref());
        if let Some((_, otherwise)) = otherwise
            && let Expr::Block(block) = &**otherwise
            && let [Stmt::Expr(Expr::Return(end), _)] = block.block.stmts.as_slice()
            && end.expr.is_none()
        {
            self.guards += 1;
        }
        visit::visit_local(self, local);
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        let name = invoked
            .path
            .segments
            .last()
            .map(|last| last.ident.to_string());
        if let Some(name) = name
            && (name.starts_with("assert") || name.starts_with("debug_assert"))
        {
            self.asserts += 1;
        }
        visit::visit_macro(self, invoked);
    }
}
