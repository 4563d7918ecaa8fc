//! Types as they are written in a crate, and the places from which their names are resolved.

use std::rc::Rc;

use syn::{GenericArgument, PathArguments, Type};

use crate::source::SourceFile;

/// Types around another one whose methods are called as if they were not there.
const TRANSPARENT: [&str; 7] = [
    "Arc",
    "Box",
    "ManuallyDrop",
    "MutexGuard",
    "Pin",
    "Rc",
    "RefMut",
];

/// Types around another one that a method takes off: `unwrap`, `borrow_mut`, `get_mut`.
const CONTAINERS: [&str; 9] = [
    "Cell", "Mutex", "Option", "RefCell", "Result", "Slab", "SmallVec", "Vec", "VecDeque",
];

/// Types around values that a key finds.
const MAPS: [&str; 2] = ["BTreeMap", "HashMap"];

/// A type as it is written somewhere.
#[derive(Clone)]
pub struct TypeAt {
    ty: Rc<Type>,
    /// Where it is written.
    pub scope: Rc<Scope>,
}

/// A place in a crate, from which names are resolved.
#[derive(Clone)]
pub struct Scope {
    /// Index in [`Crate::files`](crate::source::Crate::files).
    pub file: usize,
    /// The module, with the inline modules around the place.
    pub module: Vec<String>,
    /// What `Self` is.
    pub this: Option<usize>,
}

impl Scope {
    /// The place of a file's items.
    #[must_use]
    pub fn of(index: usize, file: &SourceFile) -> Self {
        Self {
            file: index,
            module: file.module.clone(),
            this: None,
        }
    }

    /// The path from the crate's root, if it is not one of another crate.
    #[must_use]
    pub fn absolute(&self, path: &[String]) -> Vec<String> {
        let mut module = self.module.clone();
        let mut rest = path;
        if rest.first().is_some_and(|part| part == "crate") {
            module.clear();
            rest = &rest[1..];
        }
        while let Some((first, after)) = rest.split_first()
            && matches!(first.as_str(), "self" | "super")
        {
            if first == "super" {
                module.pop();
            }
            rest = after;
        }
        module.extend(rest.iter().cloned());
        module
    }
}

impl TypeAt {
    /// The type `ty`, as it is written at `scope`.
    #[must_use]
    pub fn new(ty: &Type, scope: &Scope) -> Self {
        Self {
            ty: Rc::new(ty.clone()),
            scope: Rc::new(scope.clone()),
        }
    }

    /// The names of its path, behind references and the like. `None` if it has no path.
    #[must_use]
    pub fn path(&self) -> Option<Vec<String>> {
        match strip(&self.ty, &TRANSPARENT) {
            Type::Path(path) if path.qself.is_none() => Some(parts(&path.path)),
            _ => None,
        }
    }

    /// True for `&mut T` and `Pin<&mut T>`.
    #[must_use]
    pub fn is_by_mut(&self) -> bool {
        is_by_mut(&self.ty)
    }

    /// The type inside of a container, for example of an `Option` or a `Vec`.
    #[must_use]
    pub fn inside(&self) -> Option<Self> {
        let inner = match strip(&self.ty, &TRANSPARENT) {
            Type::Slice(slice) => &slice.elem,
            Type::Array(array) => &array.elem,
            outer => strip_one(outer, &CONTAINERS).or_else(|| arguments(outer, &MAPS)?.nth(1))?,
        };
        Some(self.at(inner))
    }

    /// The type inside, or the type itself if it is no container.
    #[must_use]
    pub fn content(&self) -> Self {
        self.inside().unwrap_or_else(|| self.clone())
    }

    /// The types of a tuple.
    #[must_use]
    pub fn members(&self) -> Option<Vec<Self>> {
        match strip(&self.ty, &TRANSPARENT) {
            Type::Tuple(tuple) => Some(tuple.elems.iter().map(|ty| self.at(ty)).collect()),
            _ => None,
        }
    }

    /// A type that is a part of this one.
    fn at(&self, ty: &Type) -> Self {
        Self {
            ty: Rc::new(ty.clone()),
            scope: Rc::clone(&self.scope),
        }
    }
}

/// Takes off references and types with these names.
fn strip<'a>(mut ty: &'a Type, names: &[&str]) -> &'a Type {
    while let Some(inner) = strip_one(ty, names) {
        ty = inner;
    }
    ty
}

fn strip_one<'a>(ty: &'a Type, names: &[&str]) -> Option<&'a Type> {
    match ty {
        Type::Reference(reference) => Some(&reference.elem),
        Type::Paren(inner) => Some(&inner.elem),
        Type::Group(inner) => Some(&inner.elem),
        ty => arguments(ty, names)?.next(),
    }
}

/// The type arguments of a type with one of these names.
fn arguments<'a>(ty: &'a Type, names: &[&str]) -> Option<impl Iterator<Item = &'a Type>> {
    let Type::Path(path) = ty else {
        return None;
    };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    names.iter().any(|name| last.ident == name).then_some(())?;
    Some(arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }))
}

fn is_by_mut(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) => reference.mutability.is_some(),
        Type::Path(_) => strip_one(ty, &["Pin"]).is_some_and(is_by_mut),
        _ => false,
    }
}

/// The names of a path, without generic arguments.
#[must_use]
pub fn parts(path: &syn::Path) -> Vec<String> {
    path.segments
        .iter()
        .map(|part| part.ident.to_string())
        .collect()
}
