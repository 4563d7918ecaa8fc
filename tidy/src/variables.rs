//! The variables at a place in a function, with their types where those can be seen without compiling:
//! `self`, parameters, declared types, fields, and what functions return.

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, FnArg, Ident, Member, Pat, PatIdent, Signature, Token};

use crate::definitions::{Definitions, Function};
use crate::type_at::{Scope, TypeAt, parts};

/// Methods of `Option`, `RefCell`, `Vec`, `Pin` and the like that return what is inside, or an iterator of it.
const GETTERS: [&str; 27] = [
    "as_deref_mut",
    "as_mut",
    "as_ref",
    "back_mut",
    "borrow",
    "borrow_mut",
    "clone",
    "drain",
    "enumerate",
    "expect",
    "first_mut",
    "front_mut",
    "get",
    "get_mut",
    "into_iter",
    "iter",
    "iter_mut",
    "last_mut",
    "lock",
    "pop",
    "pop_front",
    "remove",
    "take",
    "try_borrow_mut",
    "unwrap",
    "unwrap_or_else",
    "values_mut",
];

/// Methods that call a function with what is inside, or with each of it.
const CALLERS: [&str; 13] = [
    "all",
    "and_then",
    "any",
    "filter",
    "find",
    "flat_map",
    "for_each",
    "inspect",
    "is_none_or",
    "is_some_and",
    "map",
    "map_or",
    "retain_mut",
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
            Pat::TupleStruct(tuple) if ["Ok", "Some"].iter().any(|it| tuple.path.is_ident(it)) => {
                let written = written.map(|written| written.content());
                self.bind(&tuple.elems[0], written);
            }
            Pat::TupleStruct(tuple) => {
                let path = parts(&tuple.path);
                for (index, pattern) in places(&tuple.elems) {
                    let written = self
                        .definitions
                        .member(&path, &index.to_string(), &self.scope);
                    self.bind(pattern, written.cloned());
                }
            }
            Pat::Struct(pattern) => {
                let path = parts(&pattern.path);
                for field in &pattern.fields {
                    let name = member(&field.member);
                    let written = self.definitions.member(&path, &name, &self.scope);
                    self.bind(&field.pat, written.cloned());
                }
            }
            Pat::Tuple(tuple) => {
                let members = written.and_then(|written| written.members());
                for (index, pattern) in places(&tuple.elems) {
                    let written = members.as_ref().and_then(|members| members.get(index));
                    self.bind(pattern, written.cloned());
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
            Expr::Index(index) => self.type_of(&index.expr)?.inside(),
            Expr::Field(field) => {
                let base = self.type_of(&field.base)?;
                if let (Some(members), Member::Unnamed(index)) = (base.members(), &field.member) {
                    return members.get(index.index as usize).cloned();
                }
                let owner = self.definitions.owner(&base)?;
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

    /// Adds the variables of the pattern of a loop over `expr`: of a key or an index and a value, the value.
    pub fn bind_each(&mut self, pattern: &Pat, expr: &Expr) {
        let written = self.type_of(expr).map(|written| written.content());
        match pattern {
            Pat::Tuple(tuple) if written.as_ref().is_some_and(|it| it.members().is_none()) => {
                let last = tuple.elems.len().saturating_sub(1);
                for (index, pattern) in tuple.elems.iter().enumerate() {
                    self.bind(pattern, written.clone().filter(|_| index == last));
                }
            }
            _ => self.bind(pattern, written),
        }
    }

    /// The type with which a method calls the closures among its arguments.
    #[must_use]
    pub fn given_to_closures(&self, call: &ExprMethodCall) -> Option<TypeAt> {
        let is_caller = CALLERS.iter().any(|name| call.method == name);
        let receiver = self.type_of(&call.receiver).filter(|_| is_caller)?;
        // An iterator is written as what it iterates over.
        let iterates =
            matches!(&*call.receiver, Expr::MethodCall(inner) if is_iterator(&inner.method));
        receiver.inside().or(iterates.then_some(receiver))
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

/// The patterns with the places of what they match; behind `..`, with a place that nothing has.
fn places(patterns: &Punctuated<Pat, Token![,]>) -> impl Iterator<Item = (usize, &Pat)> {
    let rest = patterns.iter().position(|it| matches!(it, Pat::Rest(_)));
    let rest = rest.unwrap_or(patterns.len());
    let patterns = patterns.iter().enumerate();
    patterns.map(move |(index, it)| (if index > rest { usize::MAX } else { index }, it))
}

/// True for a method that may return an iterator or an `Option`, of which only the content is known.
fn is_iterator(method: &Ident) -> bool {
    GETTERS[..].iter().any(|name| method == name)
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
