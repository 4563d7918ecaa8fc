//! [`Registration`]: the instances of a generated server's service, and the place where its handlers
//! run.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use super::dispatch::Methods;
use super::executor::{Executor, OnExecutor};
use crate::intercept::Interceptor;

/// A generated server: the instances of its service, and the place where their handlers run.
///
/// Generated code has two functions that register the methods of a service: one for handlers on the
/// poller, and one for handlers on an executor, which requires that they are `Send`. A registration
/// holds the second one, if it exists, and chooses between them when it registers. So the choice is
/// made once per poller, and a call takes the way that was registered.
pub struct Registration<T> {
    instances: Instances<T>,
    place: Place,
    offload: Option<Offload<T>>,
    interceptors: Vec<Arc<dyn Interceptor>>,
}

/// Registers the methods of a service on an executor.
type Offload<T> = fn(Instance<OnExecutor<T>>, &mut Methods);

/// Where a service's handlers run.
#[derive(Clone)]
enum Place {
    /// On the server's executor, if it has one and the handlers are `Send`; else on the poller.
    Server,
    Poller,
    Executor(Arc<dyn Executor>),
}

impl<T: Send + Sync + 'static> Registration<T> {
    /// Shares one instance between all pollers. `offload` registers it on an executor.
    #[must_use]
    pub fn shared(instance: Arc<T>, offload: Offload<T>) -> Self {
        Self {
            instances: Instances::shared(instance),
            place: Place::Server,
            offload: Some(offload),
            interceptors: Vec::new(),
        }
    }

    /// Runs the handlers on `executor`. `offload` registers them there.
    #[must_use]
    pub fn executor(mut self, executor: impl Executor, offload: Offload<T>) -> Self {
        self.place = Place::Executor(Arc::new(executor));
        self.offload = Some(offload);
        self
    }
}

impl<T: 'static> Registration<T> {
    /// Creates one instance per poller, whose handlers run there.
    pub fn per_poller(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self {
            instances: Instances::per_poller(make),
            place: Place::Server,
            offload: None,
            interceptors: Vec::new(),
        }
    }

    /// Adds an interceptor, which begins after those of the server and those added before.
    #[must_use]
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    /// Runs the handlers on the pollers.
    #[must_use]
    pub fn on_poller(mut self) -> Self {
        self.place = Place::Poller;
        self
    }

    /// Registers the service on one poller. `on_poller` registers handlers that run there.
    pub fn register(&self, methods: &mut Methods, on_poller: fn(Instance<T>, &mut Methods)) {
        let executor = match &self.place {
            Place::Server => methods.executor().cloned(),
            Place::Poller => None,
            Place::Executor(executor) => Some(Arc::clone(executor)),
        };
        let instance = self.instances.instance();
        methods.register_intercepted(&self.interceptors, |methods| {
            match executor.zip(self.offload) {
                Some((executor, offload)) => {
                    let chain = methods.chain().cloned();
                    let service = OnExecutor::shared(instance.arc(), executor, chain);
                    let instance = Instance::new(Arc::new(service));
                    methods.register_on_executor(|methods| offload(instance, methods));
                }
                None => on_poller(instance, methods),
            }
        });
    }
}

impl<T> Clone for Registration<T> {
    fn clone(&self) -> Self {
        Self {
            instances: self.instances.clone(),
            place: self.place.clone(),
            offload: self.offload,
            interceptors: self.interceptors.clone(),
        }
    }
}

impl<T> fmt::Debug for Registration<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registration")
    }
}

/// The source of a generated server's service instances: one instance for all pollers, or one per
/// poller.
pub struct Instances<T>(Arc<dyn Fn() -> Arc<T> + Send + Sync>);

impl<T: Send + Sync + 'static> Instances<T> {
    /// Shares one instance between all pollers.
    #[must_use]
    pub fn shared(instance: Arc<T>) -> Self {
        Self(Arc::new(move || Arc::clone(&instance)))
    }
}

impl<T: 'static> Instances<T> {
    /// Creates one instance per poller, on the poller's thread. The instance need not be `Send`.
    pub fn per_poller(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || Arc::new(make())))
    }

    /// Returns the instance for the poller that runs on the calling thread.
    #[must_use]
    pub fn instance(&self) -> Instance<T> {
        Instance::new((self.0)())
    }
}

impl<T> Clone for Instances<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Instances<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instances")
    }
}

/// One poller's instance of a service. It is cloned for each call, so the outer count is not atomic.
#[allow(clippy::redundant_allocation)]
pub struct Instance<T>(Rc<Arc<T>>);

impl<T> Instance<T> {
    fn new(instance: Arc<T>) -> Self {
        Self(Rc::new(instance))
    }

    /// Returns a reference to the service that may outlive this poller.
    #[must_use]
    pub fn arc(&self) -> Arc<T> {
        Arc::clone(&self.0)
    }
}

impl<T> Clone for Instance<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Deref for Instance<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Instance<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instance")
    }
}
