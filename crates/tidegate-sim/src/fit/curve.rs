//! The burst for every rate: the pieces of `B(r)` by chord recursion.
//!
//! Take the line at rate 0 (the whole cost over the whole span) and the line at infinite rate (the most that comes at
//! one instant, length 0). Where two lines cross, at `r* = (S_a − S_b)/(L_a − L_b)`, one pass gives `B(r*)`. If that
//! is above the crossing, its line lies between the two and both sides are looked at again; if not, the two are
//! neighbours. At most `2K + 1` passes for `K` pieces. Because `S < 2⁶³` and `L < 2⁶⁴`, every `r*` is a [`Rate`], and
//! both sides of the comparison are integers below `2¹²⁷`.
//!
//! The other known way, divide and conquer with convex hulls, takes `O(n log n)` whatever `K` is; recorded traffic has
//! few pieces (14 to 236 in six traces), and there the recursion needs less memory and less code.

use super::{Demand, FitError, Interval, Needed, Peak, Rate};

/// How many pieces a curve may have; with twice as many, the slowest trace that is still answered takes twice as long.
///
/// Recorded traces have tens to hundreds.
pub const PIECES_MAX: usize = 10_000;

/// The smallest burst as a function of the rate: straight pieces, each forced by one interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curve {
    /// From the slowest rate to the fastest; lengths fall strictly.
    lines: Vec<Interval>,
    /// `breaks[k]` is where `lines[k]` and `lines[k + 1]` meet; they rise strictly, and all are above 0.
    breaks: Vec<Rate>,
}

impl Curve {
    /// The intervals that force the burst, from rate 0 upwards: `lines()[k]` holds from `breaks()[k − 1]` (or 0) to
    /// `breaks()[k]` (or any rate). Never empty.
    #[must_use]
    pub fn lines(&self) -> &[Interval] {
        &self.lines
    }

    /// The rates at which the forcing interval changes, rising.
    #[must_use]
    pub fn breaks(&self) -> &[Rate] {
        &self.breaks
    }

    /// The smallest burst at `rate`, equal to what [`Demand::smallest_burst`] finds; where two intervals force the
    /// same burst, the longer one is named.
    #[must_use]
    pub fn at(&self, rate: Rate) -> Needed {
        let interval = self.lines[self.breaks.partition_point(|at| *at < rate)];
        Needed { burst: interval.burst_at(rate), interval }
    }
}

impl Demand<'_> {
    /// The smallest burst for every rate.
    ///
    /// # Errors
    ///
    /// [`FitError::TooManyPieces`] above [`PIECES_MAX`] pieces.
    pub fn curve(&self) -> Result<Curve, FitError> {
        let slowest = Rate::per_second(0);
        let first = self.interval(self.peak(slowest), slowest);
        let mut lines = vec![first];
        let mut breaks = Vec::new();
        // What is still to be looked at, the slowest pair on top: depth-first, so the lines come out in order.
        let mut pairs = vec![(first, self.instant())];
        while let Some((slow, fast)) = pairs.pop() {
            if slow.length == fast.length {
                // Only at the start, when every arrival comes at one instant: both are the same line.
                continue;
            }
            let at = Rate::new(slow.cost - fast.cost, slow.length - fast.length)?.reduced();
            let (token, refill) = at.units();
            let crossing = u128::from(fast.cost) * token - refill * u128::from(fast.length);
            let peak = self.peak(at);
            if peak.owed > crossing {
                if lines.len() + pairs.len() + 2 > PIECES_MAX {
                    return Err(FitError::TooManyPieces { max: PIECES_MAX });
                }
                let between = self.interval(peak, at);
                pairs.push((between, fast));
                pairs.push((slow, between));
            } else {
                lines.push(fast);
                breaks.push(at);
            }
        }
        Ok(without_points(&lines, &breaks))
    }

    /// The most that comes at one instant: the line of an infinite rate.
    fn instant(&self) -> Interval {
        let mut best = Interval { from: 0, to: 0, requests: 0, cost: 0, begin: 0, length: 0, key: None };
        for run in &self.runs {
            let mut from = run.from;
            let mut cost = 0;
            for place in run.from..run.to {
                if self.times[place] != self.times[from] {
                    cost = 0;
                }
                if cost == 0 {
                    from = place;
                }
                cost += self.cost(place);
                if cost > best.cost {
                    let peak = Peak { owed: u128::from(cost), key: run.key, from, to: place };
                    best = self.interval(peak, Rate::per_second(0));
                }
            }
        }
        best
    }
}

/// Leaves out lines that touch the curve in one point only, and at the front those that hold at rate 0 only.
fn without_points(lines: &[Interval], breaks: &[Rate]) -> Curve {
    let mut curve = Curve { lines: vec![lines[0]], breaks: Vec::new() };
    let mut before = Rate::per_second(0);
    for (line, at) in lines[1..].iter().zip(breaks) {
        if *at == before {
            // The line before this one would begin and end at `at`.
            curve.lines.pop();
        } else {
            curve.breaks.push(*at);
            before = *at;
        }
        curve.lines.push(*line);
    }
    curve
}
