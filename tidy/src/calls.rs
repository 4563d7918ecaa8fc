//! Which file calls what another file defines for the same type: methods, also those of traits, and
//! functions that take the type by `&mut`.
//!
//! Such calls need no `use`: `self.flush()` reaches any file with an `impl State`. They are counted
//! where the receiver's type [can be seen](crate::variables). A name that several files define for one
//! type is left out. Not seen are: values of a `match` or an `if`, aliases of types, `Deref`, default
//! methods of traits, generic impls, and functions that take the type by `&`.

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Block, Expr, ExprClosure, ExprForLoop, ExprIf, ExprLet, ExprMatch, ExprMethodCall, ExprPath,
    ExprWhile, ImplItemFn, ItemFn, ItemImpl, ItemMod, Local, Macro,
};

use crate::definitions::{Definitions, Function};
use crate::source::{Crate, is_for_tests};
use crate::type_at::{Scope, TypeAt, parts};
use crate::variables::Variables;

/// A call from one file to another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// Index of the calling file in [`Crate::files`].
    pub from: usize,
    /// The file that defines what is called.
    pub to: usize,
    /// Line of the call.
    pub line: usize,
    /// The type and the called name: `State::flush`.
    pub called: String,
}

/// All such calls in a crate's product code.
#[must_use]
pub fn arrows(source: &Crate, definitions: &Definitions) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    for (index, file) in source.files.iter().enumerate() {
        if file.is_counted() {
            let mut visitor = Visitor {
                definitions,
                variables: Variables::new(definitions, Scope::of(index, file)),
                arrows: Vec::new(),
                given: None,
            };
            visitor.visit_file(&file.syntax);
            arrows.extend(visitor.arrows);
        }
    }
    arrows.sort();
    arrows.dedup();
    arrows
}

struct Visitor<'a> {
    definitions: &'a Definitions,
    variables: Variables<'a>,
    arrows: Vec<Arrow>,
    /// The type of the last argument with which the closure that comes next is called, if it can be seen.
    given: Option<TypeAt>,
}

impl Visitor<'_> {
    /// Visits what has variables of its own.
    fn nested(&mut self, visit: impl FnOnce(&mut Self)) {
        let outer = self.variables.count();
        visit(self);
        self.variables.truncate(outer);
    }

    /// Records the call of a method of `owner`, or of a function that takes types by `&mut`.
    fn record(&mut self, line: usize, owner: Option<usize>, function: &Function, name: &str) {
        if function.file == self.variables.scope.file {
            return;
        }
        let owners = owner
            .iter()
            .chain(&function.changes)
            .map(|&owner| &self.definitions.owners[owner]);
        for owner in owners.filter(|owner| owner.reached.len() > 1) {
            self.arrows.push(Arrow {
                from: self.variables.scope.file,
                to: function.file,
                line,
                called: format!("{}::{name}", owner.name),
            });
        }
    }

    /// Visits the expressions among the arguments of a macro: chains of names, dots and parentheses.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        let mut chain: Vec<TokenTree> = Vec::new();
        for token in tokens {
            let after_name = chain
                .last()
                .is_some_and(|last| !matches!(last, TokenTree::Punct(_)));
            let continues = match &token {
                TokenTree::Ident(_) => !after_name,
                TokenTree::Punct(mark) => {
                    !chain.is_empty() && matches!(mark.as_char(), '.' | ':' | '?')
                }
                TokenTree::Group(group) => {
                    after_name && group.delimiter() == proc_macro2::Delimiter::Parenthesis
                }
                TokenTree::Literal(_) => false,
            };
            if !continues {
                self.visit_chain(std::mem::take(&mut chain));
            }
            match token {
                TokenTree::Group(group) if !continues => self.visit_tokens(group.stream()),
                TokenTree::Ident(_) => chain.push(token),
                _ if continues => chain.push(token),
                _ => {}
            }
        }
        self.visit_chain(chain);
    }

    fn visit_chain(&mut self, chain: Vec<TokenTree>) {
        match syn::parse2::<Expr>(chain.iter().cloned().collect()) {
            Ok(expr @ (Expr::MethodCall(_) | Expr::Call(_))) => self.visit_expr(&expr),
            _ => {
                for token in chain {
                    if let TokenTree::Group(group) = token {
                        self.visit_tokens(group.stream());
                    }
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.variables.scope.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.variables.scope.module.pop();
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_for_tests(&item.attrs) {
            let outer = self.variables.scope.this;
            self.variables.scope.this = self
                .definitions
                .owner(&TypeAt::new(&item.self_ty, &self.variables.scope));
            visit::visit_item_impl(self, item);
            self.variables.scope.this = outer;
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_for_tests(&item.attrs) {
            self.nested(|this| {
                this.variables.bind_parameters(&item.sig);
                visit::visit_item_fn(this, item);
            });
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.nested(|this| {
                this.variables.bind_parameters(&item.sig);
                visit::visit_impl_item_fn(this, item);
            });
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        self.nested(|this| visit::visit_block(this, block));
    }

    fn visit_local(&mut self, local: &'ast Local) {
        visit::visit_local(self, local);
        let value = local
            .init
            .as_ref()
            .and_then(|init| self.variables.type_of(&init.expr));
        self.variables.bind(&local.pat, value);
    }

    fn visit_expr_let(&mut self, expr: &'ast ExprLet) {
        visit::visit_expr_let(self, expr);
        self.variables
            .bind(&expr.pat, self.variables.type_of(&expr.expr));
    }

    fn visit_expr_if(&mut self, expr: &'ast ExprIf) {
        self.nested(|this| {
            this.visit_expr(&expr.cond);
            this.visit_block(&expr.then_branch);
        });
        if let Some((_, otherwise)) = &expr.else_branch {
            self.visit_expr(otherwise);
        }
    }

    fn visit_expr_while(&mut self, expr: &'ast ExprWhile) {
        self.nested(|this| visit::visit_expr_while(this, expr));
    }

    fn visit_expr_for_loop(&mut self, expr: &'ast ExprForLoop) {
        self.visit_expr(&expr.expr);
        self.nested(|this| {
            this.variables.bind_each(&expr.pat, &expr.expr);
            this.visit_block(&expr.body);
        });
    }

    fn visit_expr_match(&mut self, expr: &'ast ExprMatch) {
        self.visit_expr(&expr.expr);
        let matched = self.variables.type_of(&expr.expr);
        for arm in &expr.arms {
            self.nested(|this| {
                this.variables.bind(&arm.pat, matched.clone());
                visit::visit_arm(this, arm);
            });
        }
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        let mut given = self.given.take();
        self.nested(|this| {
            for input in closure.inputs.iter().rev() {
                this.variables.bind(input, given.take());
            }
            visit::visit_expr_closure(this, closure);
        });
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let owner = self
            .variables
            .type_of(&call.receiver)
            .and_then(|written| self.definitions.owner(&written));
        let name = call.method.to_string();
        if let Some(owner) = owner
            && let Some(function) = self.definitions.method(owner, &name)
        {
            self.record(
                call.method.span().start().line,
                Some(owner),
                function,
                &name,
            );
        }
        self.visit_expr(&call.receiver);
        let given = self.variables.given_to_closures(call);
        for argument in &call.args {
            self.given = given
                .clone()
                .filter(|_| matches!(argument, Expr::Closure(_)));
            self.visit_expr(argument);
        }
    }

    /// A path that names a function, called or not.
    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        let names = parts(&path.path);
        if let Some((owner, function)) = self.variables.called(&names)
            && let Some(name) = names.last()
        {
            self.record(path.span().start().line, owner, function, name);
        }
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        self.visit_tokens(invoked.tokens.clone());
    }
}
