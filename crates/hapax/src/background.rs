//! Background tasks, which run beside the calls.

/// Runs `work` on its own task. A runtime that shuts down drops its tasks before they end; then
/// `when_dropped` is called, so that the next call can start the work again. `when_dropped` may run
/// inside this call: hold no lock that it takes.
pub(crate) fn spawn(
    work: impl Future<Output = ()> + Send + 'static,
    when_dropped: impl FnOnce() + Send + 'static,
) {
    let mut mark = Mark(Some(when_dropped));
    tokio::spawn(async move {
        // Moved into the task, so that it is dropped together with it.
        let mark = &mut mark;
        work.await;
        mark.0 = None;
    });
}

struct Mark<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Mark<F> {
    fn drop(&mut self) {
        if let Some(when_dropped) = self.0.take() {
            when_dropped();
        }
    }
}
