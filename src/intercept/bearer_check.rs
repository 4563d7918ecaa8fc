//! [`BearerCheck`]: a server's check of bearer tokens.

use std::fmt;

use rpc_core::Status;
use rpc_core::intercept::{Begin, Call, Interceptor};

use super::AUTHORIZATION;

/// Lets calls with a valid bearer token pass, on a server: metadata `authorization: Bearer <token>`
/// (RFC 6750, section 2.1). Others fail with `UNAUTHENTICATED`, or with the status of the check.
///
/// What the check returns says who calls. The handler finds it in the request's extensions.
///
/// ```
/// use verbline::intercept::BearerCheck;
/// use verbline::{Request, Status};
///
/// /// Who calls.
/// struct Caller(&'static str);
///
/// let check = BearerCheck::new(|token: &str| match token {
///     "open sesame" => Ok(Caller("Ali Baba")),
///     _ => Err(Status::unauthenticated("the token is not valid")),
/// });
///
/// fn handler(request: &Request<()>) {
///     let caller = request.extensions().get::<Caller>();
///     println!("{}", caller.map_or("nobody", |Caller(name)| name));
/// }
/// # let _ = (check, handler);
/// ```
///
/// A check that compares secrets should take the same time for each, or compare hashes of them: its
/// time tells how much of a token is right.
pub struct BearerCheck<C>(C);

impl<T, F> BearerCheck<Now<F>>
where
    F: Fn(&str) -> Result<T, Status> + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    /// Checks tokens with `check`, which must not block.
    pub fn new(check: F) -> Self {
        Self(Now(check))
    }
}

impl<T, F, Fut> BearerCheck<Later<F>>
where
    F: Fn(String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, Status>> + Send + 'static,
    T: Send + Sync + 'static,
{
    /// Checks tokens with a `check` that may wait, for another service for example. It runs where the
    /// handlers run: what needs a runtime needs an [executor](crate::server::ServerBuilder::executor).
    pub fn later(check: F) -> Self {
        Self(Later(check))
    }
}

/// A check that decides at once.
#[derive(Debug)]
pub struct Now<F>(F);

/// A check that may wait.
#[derive(Debug)]
pub struct Later<F>(F);

impl<T, F> Interceptor for BearerCheck<Now<F>>
where
    F: Fn(&str) -> Result<T, Status> + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        let Now(check) = &self.0;
        let checked = token(call).and_then(check);
        checked.map(|caller| admit(call, caller)).into()
    }
}

impl<T, F, Fut> Interceptor for BearerCheck<Later<F>>
where
    F: Fn(String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, Status>> + Send + 'static,
    T: Send + Sync + 'static,
{
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        let Later(check) = &self.0;
        match token(call) {
            Ok(token) => Begin::later_with(check(token.to_owned()), |caller, call| {
                admit(call, caller);
                Ok(())
            }),
            Err(status) => Begin::refuse(status),
        }
    }
}

/// Tells the handler who calls.
fn admit<T: Send + Sync + 'static>(call: &mut Call<'_>, caller: T) {
    call.extensions_mut().insert(caller);
}

/// Returns the token of a call.
fn token<'a>(call: &'a Call<'_>) -> Result<&'a str, Status> {
    let Some(value) = call.metadata().get(AUTHORIZATION) else {
        return Err(Status::unauthenticated(
            "the call has no `authorization` metadata; send `Bearer <token>`",
        ));
    };
    // The name of the scheme may be written in any case (RFC 9110, section 11.1).
    match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(Status::unauthenticated(
            "the `authorization` metadata is no bearer token; send `Bearer <token>`",
        )),
    }
}

impl<C> fmt::Debug for BearerCheck<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerCheck")
    }
}
