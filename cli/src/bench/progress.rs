//! [`Progress`]: a bar on standard error while a terminal shows it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// How often the bar moves.
const STEP: Duration = Duration::from_millis(100);

/// The bar. Nothing is written if standard error is no terminal. It goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When the load has begun that is measured.
    begun: Arc<Mutex<Option<Instant>>>,
    moving: JoinHandle<()>,
}

impl Progress {
    /// Shows a bar for loads of this time each.
    pub(crate) fn new(each: Duration, runtime: &Handle) -> Self {
        let millis = u64::try_from(each.as_millis()).unwrap_or(u64::MAX);
        let bar = ProgressBar::with_draw_target(Some(millis), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{wide_bar} {msg} {eta:>4}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let begun = Arc::new(Mutex::new(None::<Instant>));
        let (moved, since) = (bar.clone(), Arc::clone(&begun));
        let moving = runtime.spawn(async move {
            let mut steps = tokio::time::interval(STEP);
            loop {
                steps.tick().await;
                let begun = *since.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(begun) = begun {
                    let elapsed = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                    moved.set_position(elapsed.min(millis));
                }
            }
        });
        Self { bar, begun, moving }
    }

    /// A load is prepared.
    pub(crate) fn prepare(&self, what: String) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.bar.set_position(0);
        self.bar.reset_eta();
        self.bar.set_message(what);
    }

    /// Its calls begin.
    pub(crate) fn begin(&self) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.moving.abort();
        self.bar.finish_and_clear();
    }
}
