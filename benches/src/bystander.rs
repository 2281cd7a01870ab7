//! Somebody else who uses the server meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// What it does, over and over: one small request on a connection of its own.
pub(crate) type Request = Box<dyn FnMut() + Send>;

/// From one request to the next.
const PAUSE: Duration = Duration::from_micros(500);

/// A thread that asks until it is told to stop.
pub(crate) struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Histogram<u64>>,
}

impl Bystander {
    pub(crate) fn start(mut request: Request) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut times = Histogram::new(3).expect("three digits");
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                request();
                let time = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
                times.record(time).expect("it resizes");
                thread::sleep(PAUSE);
            }
            times
        });
        Self { stop, thread }
    }

    /// How long its requests took, in µs.
    pub(crate) fn stop(self) -> Histogram<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}
