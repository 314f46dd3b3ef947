//! Turns: in a budget that shells share, or in the gate of one run.

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate::budget::{BudgetError, Place};
use tidegate::gate::{Permit, Refused};
use tidegate::{Budget, Decision, Gate, Quota};

use crate::fault::Hint;
use crate::store::{NoPlace, StoreBudget, StorePlace, look};

/// The longest sleep in one go. The runtime's clock stands still in suspend and the budget's goes on, so a wait is looked
/// at again at least this often; asking costs some microseconds.
const NAP: Duration = Duration::from_secs(1);

/// How often a place in flight of this machine is asked for that is taken: nobody says when it becomes free.
const LOOK: Duration = Duration::from_millis(20);

/// How long a person waits before they are told.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where turns come from, and what one costs.
#[derive(Debug)]
pub(super) struct Turns {
    source: Source,
    cost: u64,
    max_wait: Option<Duration>,
}

#[derive(Debug)]
enum Source {
    Gate(Gate),
    Budget { budget: Box<Budget>, name: String },
    Store(Box<StoreBudget>),
}

/// What is held while the command runs.
#[derive(Debug)]
#[expect(dead_code, reason = "it is held, and given back when it goes away")]
pub(super) enum Held {
    Permit(Permit),
    Place(Option<Place>),
    Shared(Option<StorePlace>),
}

/// How a wait ends.
pub(super) type Turn = anyhow::Result<Result<Held, Late>>;

/// The turn did not come in time. Nothing was charged.
#[derive(Debug)]
pub(super) enum Late {
    /// The wait would have been this long, from its beginning.
    Turn { max_wait: Duration, wait: Duration },
    /// All places in flight were taken, and nobody knows for how long.
    Place { max_wait: Duration },
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turn { max_wait, wait } => write!(
                f,
                "no turn within {max_wait:?}: it would have been a wait of {}; allow a longer --max-wait or try again later",
                rounded(*wait)
            ),
            Self::Place { max_wait } => write!(
                f,
                "no turn within {max_wait:?}: as many commands ran all the time as may; allow a longer --max-wait or try again later"
            ),
        }
    }
}

impl Turns {
    pub(super) const fn of_gate(gate: Gate, cost: u64, max_wait: Option<Duration>) -> Self {
        Self { source: Source::Gate(gate), cost, max_wait }
    }

    pub(super) fn of_budget(budget: Budget, name: String, cost: u64, max_wait: Option<Duration>) -> Self {
        Self { source: Source::Budget { budget: Box::new(budget), name }, cost, max_wait }
    }

    pub(super) fn of_store(budget: StoreBudget, cost: u64, max_wait: Option<Duration>) -> Self {
        Self { source: Source::Store(Box::new(budget)), cost, max_wait }
    }

    /// The quota of the budget.
    pub(super) fn quota(&self) -> anyhow::Result<Quota> {
        match &self.source {
            Source::Budget { budget, .. } => Ok(budget.quota()?),
            Source::Store(budget) => Ok(budget.quota()),
            Source::Gate(_) => Err(Hint::error("no limit is given", "add one, such as --limit 2/s")),
        }
    }

    /// Waits for a turn. Who stops waiting is not charged.
    pub(super) async fn next(&self) -> Turn {
        match &self.source {
            Source::Gate(gate) => {
                let call = gate.call(self.cost);
                let call = self.max_wait.map_or(call, |max_wait| call.within(max_wait));
                match call.acquire().await {
                    Ok(permit) => Ok(Ok(Held::Permit(permit))),
                    Err(Refused::Deadline { max_wait, wait }) => Ok(Err(Late::Turn { max_wait, wait })),
                    Err(refused) => Err(refused.into()),
                }
            }
            Source::Budget { budget, .. } => {
                let started = Instant::now();
                let place = match self.place(budget, started).await? {
                    Ok(place) => place,
                    Err(late) => return Ok(Err(late)),
                };
                let tokens = self.tokens(started, async || Ok(budget.check_n(self.cost)?)).await?;
                Ok(tokens.map(|()| Held::Place(place)))
            }
            Source::Store(budget) if budget.max_in_flight().is_none() => {
                let tokens = self.tokens(Instant::now(), async || Ok(budget.check(self.cost).await)).await?;
                Ok(tokens.map(|()| Held::Shared(None)))
            }
            Source::Store(budget) => self.shared(budget).await,
        }
    }

    /// As [`Self::next`], and tells a person who watches that it takes a while.
    pub(super) async fn shown(&self) -> Turn {
        let mut turn = pin!(self.next());
        if !io::stderr().is_terminal() {
            return turn.await;
        }
        let place = match &self.source {
            Source::Gate(_) => String::new(),
            Source::Budget { name, .. } => format!(" in budget {}", crate::report::text::one_line(name)),
            Source::Store(budget) => format!(" in budget {}", crate::report::text::one_line(budget.name())),
        };
        let started = Instant::now();
        let line = line();
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => {
                    line.finish_and_clear();
                    return turn;
                }
                _ = ticks.tick() => if started.elapsed() > PATIENCE {
                    line.set_message(format!("waiting {:.1} s for a turn{place}", started.elapsed().as_secs_f64()));
                    line.tick();
                },
            }
        }
    }

    /// A place in flight; `None` if nobody asked for places in this budget.
    ///
    /// It is taken before the tokens: a place can be given back, and tokens cannot. Who waits for tokens with it keeps
    /// nobody from running, as without tokens nobody can.
    async fn place(&self, budget: &Budget, started: Instant) -> anyhow::Result<Result<Option<Place>, Late>> {
        loop {
            match budget.enter() {
                Ok(Some(place)) => return Ok(Ok(Some(place))),
                Err(BudgetError::NoPlaces { .. }) => return Ok(Ok(None)),
                Ok(None) => {}
                Err(error) => return Err(error.into()),
            }
            match self.max_wait {
                Some(max_wait) if started.elapsed() >= max_wait => return Ok(Err(Late::Place { max_wait })),
                max_wait => {
                    let left = max_wait.map_or(LOOK, |max_wait| max_wait.saturating_sub(started.elapsed()));
                    tokio::time::sleep(left.min(LOOK)).await;
                }
            }
        }
    }

    /// A place and the tokens of a server, both or neither.
    ///
    /// Without tokens the place is given back at once, and they are waited for without it: on other machines somebody may wait
    /// for a place, and would otherwise find one only in the instant between two commands of this run.
    async fn shared(&self, budget: &StoreBudget) -> Turn {
        let started = Instant::now();
        loop {
            let place = match self.shared_place(budget, started).await {
                Ok(place) => place,
                Err(late) => return Ok(Err(late)),
            };
            if budget.check(self.cost).await.is_allowed() {
                return Ok(Ok(Held::Shared(place)));
            }
            drop(place);
            if let Err(late) = self.tokens(started, async || Ok(budget.look(self.cost).await)).await? {
                return Ok(Err(late));
            }
        }
    }

    /// As [`Self::place`], of a server.
    async fn shared_place(&self, budget: &StoreBudget, started: Instant) -> Result<Option<StorePlace>, Late> {
        loop {
            let none = match budget.enter().await {
                Ok(place) => return Ok(place),
                Err(none) => none,
            };
            let waited = started.elapsed();
            let left = self.max_wait.map_or(Duration::MAX, |max_wait| max_wait.saturating_sub(waited));
            let wait = match (none, self.max_wait) {
                (NoPlace::Full, Some(max_wait)) if left.is_zero() => return Err(Late::Place { max_wait }),
                (NoPlace::Full, _) => look().min(left),
                (NoPlace::Away(wait), Some(max_wait)) if wait > left => {
                    return Err(Late::Turn { max_wait, wait: waited.saturating_add(wait) });
                }
                (NoPlace::Away(wait), _) => wait,
            };
            tokio::time::sleep(wait.min(NAP)).await;
        }
    }

    /// Waits a moment until what was let go is released where others see it. To be called before the process ends.
    pub(super) async fn finish(&self) {
        if let Source::Store(budget) = &self.source {
            budget.finish().await;
        }
    }

    /// Asks for the tokens until they are there.
    async fn tokens(
        &self,
        started: Instant,
        ask: impl AsyncFn() -> anyhow::Result<Decision>,
    ) -> anyhow::Result<Result<(), Late>> {
        loop {
            let decision = ask().await?;
            let wait = match decision {
                Decision::Allowed { .. } => return Ok(Ok(())),
                Decision::Rejected { .. } => decision.retry_after().unwrap_or_default(),
                // The quota was changed meanwhile.
                Decision::Never { .. } => {
                    return Err(Hint::error(
                        format!("cost {} exceeds the burst that the budget has now", self.cost),
                        "raise the burst or lower the cost",
                    ));
                }
            };
            let in_all = started.elapsed().saturating_add(wait);
            match self.max_wait {
                Some(max_wait) if in_all > max_wait => {
                    return Ok(Err(Late::Turn { max_wait, wait: in_all }));
                }
                _ => tokio::time::sleep(wait.min(NAP)).await,
            }
        }
    }
}

/// A line for a person, on stderr. It shows nothing until it has a message, and nothing without a terminal.
pub(super) fn line() -> ProgressBar {
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{msg}") {
        Ok(style) => line.with_style(style),
        Err(_) => line,
    }
}

/// A time that a person reads, rounded up to milliseconds.
fn rounded(time: Duration) -> String {
    let ms = time.as_nanos().div_ceil(1_000_000);
    format!("{:?}", Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)))
}
