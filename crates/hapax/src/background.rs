//! Tasks beside the calls.

/// Runs `work` on a task of its own. A runtime that shuts down drops its tasks before they have
/// ended; then `when_dropped` is called, so that the next call can start the work again. That may
/// be inside of this call: hold no lock that `when_dropped` takes.
pub(crate) fn spawn(
    work: impl Future<Output = ()> + Send + 'static,
    when_dropped: impl FnOnce() + Send + 'static,
) {
    let mut mark = Mark(Some(when_dropped));
    tokio::spawn(async move {
        // Moved in here, so that it is dropped together with the task.
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
