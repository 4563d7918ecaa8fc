//! The variables at a place in a function, with their types where those can be seen without compiling:
//! `self`, parameters, declared types, fields, and what functions return.

use syn::visit::{self, Visit};
use syn::{Expr, FnArg, Member, Pat, PatIdent, Signature};

use crate::definitions::{Definitions, Function};
use crate::type_at::{Scope, TypeAt, parts};

/// Methods of `Option`, `RefCell`, `Pin` and the like that return what is inside.
const GETTERS: [&str; 12] = [
    "as_deref_mut",
    "as_mut",
    "as_ref",
    "borrow",
    "borrow_mut",
    "clone",
    "expect",
    "get_mut",
    "lock",
    "take",
    "unwrap",
    "unwrap_or_else",
];

/// What is known at a place in the code.
pub struct Variables<'a> {
    definitions: &'a Definitions,
    /// The place.
    pub scope: Scope,
    /// The variables, the innermost last.
    known: Vec<(String, Option<TypeAt>)>,
}

impl<'a> Variables<'a> {
    /// A place outside of functions.
    #[must_use]
    pub fn new(definitions: &'a Definitions, scope: Scope) -> Self {
        Self {
            definitions,
            scope,
            known: Vec::new(),
        }
    }

    /// How many there are, for [`truncate`](Self::truncate) at the end of a block.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Forgets all but the first `count`.
    pub fn truncate(&mut self, count: usize) {
        self.known.truncate(count);
    }

    /// Adds `self` and the parameters of a function. A function inside of another one has no others, but
    /// the outer ones do no harm: the compiler has seen that it does not name them.
    pub fn bind_parameters(&mut self, signature: &Signature) {
        for input in &signature.inputs {
            match input {
                FnArg::Receiver(_) => {
                    let this = TypeAt::new(&syn::parse_quote!(Self), &self.scope);
                    self.known.push(("self".into(), Some(this)));
                }
                FnArg::Typed(input) => {
                    self.bind(&input.pat, Some(TypeAt::new(&input.ty, &self.scope)));
                }
            }
        }
    }

    /// Adds the variables of a pattern for a value of type `written`.
    pub fn bind(&mut self, pattern: &Pat, written: Option<TypeAt>) {
        match pattern {
            Pat::Ident(ident) => self.known.push((ident.ident.to_string(), written)),
            Pat::Type(typed) => self.bind(&typed.pat, Some(TypeAt::new(&typed.ty, &self.scope))),
            Pat::Reference(inner) => self.bind(&inner.pat, written),
            Pat::Paren(inner) => self.bind(&inner.pat, written),
            Pat::TupleStruct(tuple) if tuple.elems.len() == 1 => {
                let is_container = ["Ok", "Some"].iter().any(|name| tuple.path.is_ident(name));
                let written = written.filter(|_| is_container);
                self.bind(&tuple.elems[0], written.map(|written| written.content()));
            }
            Pat::Struct(pattern) => {
                let path = parts(&pattern.path);
                let owner = self.definitions.owner_at(&path, &self.scope);
                for field in &pattern.fields {
                    let name = member(&field.member);
                    let written = owner.and_then(|owner| self.definitions.field(owner, &name));
                    self.bind(&field.pat, written.cloned());
                }
            }
            _ => {
                let mut names = Names(Vec::new());
                names.visit_pat(pattern);
                self.known
                    .extend(names.0.into_iter().map(|name| (name, None)));
            }
        }
    }

    /// The type of an expression, if it can be seen.
    #[must_use]
    pub fn type_of(&self, expr: &Expr) -> Option<TypeAt> {
        match expr {
            Expr::Path(path) => {
                let name = path.path.get_ident()?;
                let mut variables = self.known.iter().rev();
                variables.find(|(variable, _)| name == variable)?.1.clone()
            }
            Expr::Reference(inner) => self.type_of(&inner.expr),
            Expr::Paren(inner) => self.type_of(&inner.expr),
            Expr::Unary(inner) => self.type_of(&inner.expr),
            Expr::Try(inner) => self.type_of(&inner.expr).map(|written| written.content()),
            Expr::Field(field) => {
                let owner = self.definitions.owner(&self.type_of(&field.base)?)?;
                self.definitions
                    .field(owner, &member(&field.member))
                    .cloned()
            }
            Expr::MethodCall(call) => {
                let written = self.type_of(&call.receiver)?;
                let name = call.method.to_string();
                let owner = self.definitions.owner(&written);
                match owner.and_then(|owner| self.definitions.method(owner, &name)) {
                    Some(function) => function.returned.clone(),
                    None => GETTERS.contains(&&*name).then(|| written.content()),
                }
            }
            Expr::Call(call) => {
                let Expr::Path(path) = &*call.func else {
                    return None;
                };
                self.called(&parts(&path.path))?.1.returned.clone()
            }
            _ => None,
        }
    }

    /// The function that a path names, and the type if it is one of its methods.
    #[must_use]
    pub fn called(&self, path: &[String]) -> Option<(Option<usize>, &'a Function)> {
        let (name, before) = path.split_last()?;
        if let Some(owner) = self.definitions.owner_at(before, &self.scope) {
            return Some((Some(owner), self.definitions.method(owner, name)?));
        }
        let is_variable = before.is_empty() && self.known.iter().any(|(other, _)| other == name);
        (!is_variable).then_some(())?;
        Some((None, self.definitions.function(path, &self.scope)?))
    }
}

fn member(member: &Member) -> String {
    match member {
        Member::Named(name) => name.to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

/// The names that a pattern binds.
struct Names(Vec<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.0.push(pattern.ident.to_string());
        visit::visit_pat_ident(self, pattern);
    }
}
