//! What is seldom ready beside what mostly is: it is asked only after it has called.
//!
//! A connection is woken for each request. To ask its timers and the end of the server then, too, took a tenth of what a
//! request takes of the processor without the system.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Something that is asked by a function, as a future is.
pub(super) struct Seldom<F> {
    ask: F,
    bell: Option<Arc<Bell>>,
}

/// Wakes the task, and remembers that it did.
struct Bell {
    has_rung: AtomicBool,
    task: Waker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

impl<T, F: FnMut(&mut Context<'_>) -> Poll<T>> Seldom<F> {
    pub(super) const fn new(ask: F) -> Self {
        Self { ask, bell: None }
    }

    /// What `ask` says, if it called the task since it was last asked, or was never asked, or was ready then.
    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<T> {
        let bell = match &self.bell {
            Some(bell) if bell.task.will_wake(context.waker()) => bell,
            _ => {
                let (has_rung, task) = (AtomicBool::new(true), context.waker().clone());
                self.bell.insert(Arc::new(Bell { has_rung, task }))
            }
        };
        // Before it is asked: a call that comes meanwhile counts for the next time.
        if !bell.has_rung.load(Ordering::Relaxed) || !bell.has_rung.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(bell));
        let asked = (self.ask)(&mut Context::from_waker(&waker));
        if asked.is_ready() {
            // It has not said when it is ready again.
            bell.has_rung.store(true, Ordering::Release);
        }
        asked
    }
}

impl<F> fmt::Debug for Seldom<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seldom").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::AtomicU32;

    /// Counts how often the task was woken.
    #[derive(Default)]
    struct Task(AtomicU32);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn it_is_asked_once_and_then_after_each_call() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(Arc::clone(&task));
        let context = Context::from_waker(&waker);
        let is_ready = Cell::new(false);
        let (asked, caller) = (Cell::new(0), RefCell::new(None::<Waker>));
        let mut seldom = Seldom::new(|context: &mut Context<'_>| {
            asked.set(asked.get() + 1);
            *caller.borrow_mut() = Some(context.waker().clone());
            if is_ready.get() { Poll::Ready("ready") } else { Poll::Pending }
        });
        let mut poll = || (seldom.poll(&context), asked.get());
        assert_eq!([poll(), poll(), poll()], [(Poll::Pending, 1); 3]);
        let call = || caller.borrow().as_ref().unwrap().wake_by_ref();
        // Two calls wake the task twice, and are one question.
        call();
        call();
        assert_eq!(task.0.load(Ordering::SeqCst), 2);
        assert_eq!([poll(), poll()], [(Poll::Pending, 2); 2]);
        // What is ready may be so again at once.
        is_ready.set(true);
        assert_eq!(poll(), (Poll::Pending, 2));
        call();
        assert_eq!([poll(), poll()], [(Poll::Ready("ready"), 3), (Poll::Ready("ready"), 4)]);
        is_ready.set(false);
        assert_eq!([poll(), poll()], [(Poll::Pending, 5); 2]);
    }

    #[test]
    fn a_call_while_it_is_asked_is_not_lost() {
        let mut asked = 0;
        let mut seldom = Seldom::new(|context: &mut Context<'_>| {
            asked += 1;
            if asked == 1 {
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        let waker = Waker::from(Arc::new(Task::default()));
        let context = Context::from_waker(&waker);
        for _ in 0..3 {
            assert_eq!(seldom.poll(&context), Poll::Pending);
        }
        assert_eq!(asked, 2);
    }

    #[test]
    fn another_task_is_called_from_then_on() {
        let tasks = [Arc::new(Task::default()), Arc::new(Task::default())];
        let caller = RefCell::new(None::<Waker>);
        let mut seldom = Seldom::new(|context: &mut Context<'_>| {
            *caller.borrow_mut() = Some(context.waker().clone());
            Poll::<()>::Pending
        });
        for task in &tasks {
            let waker = Waker::from(Arc::clone(task));
            assert_eq!(seldom.poll(&Context::from_waker(&waker)), Poll::Pending);
            caller.borrow().as_ref().unwrap().wake_by_ref();
            assert_eq!(task.0.load(Ordering::SeqCst), 1);
        }
    }
}
