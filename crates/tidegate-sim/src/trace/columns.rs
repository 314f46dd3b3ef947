//! Rows to columns: time, key number and cost of each row, and at the end the columns in time order.
//!
//! Memory per request: 8 bytes of time, 4 of key number when keys are asked for, 8 of cost when costs are. Sorting, only
//! when a line is out of order, adds 6 bytes for the permutation and then one column at a time: 34 bytes at the most.

use std::borrow::Cow;

use super::error::{BadLine, Expected, Found};
use super::keys::KeyTable;
use super::number;
use super::time::{TimeFault, Times};
use super::unit::TimeReading;
use crate::{Arrivals, Costs, Keys};

/// Which of the fields that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Time,
    Key,
    /// The cost field of this index.
    Cost(usize),
}

/// A row of any format: it finds the fields that were asked for.
pub(super) trait Row {
    fn field(&self, slot: Slot) -> Result<Cow<'_, [u8]>, BadLine>;
}

/// Why a row cannot be added.
#[derive(Debug)]
pub(super) enum RowFault {
    /// This row is bad, others may be fine.
    Bad(BadLine),
    /// The time has no unit, so no row can be read.
    AmbiguousTime(Found),
    /// 32 bits cannot number the requests.
    TooMany,
}

impl From<BadLine> for RowFault {
    fn from(bad: BadLine) -> Self {
        Self::Bad(bad)
    }
}

impl From<TimeFault> for RowFault {
    fn from(fault: TimeFault) -> Self {
        match fault {
            TimeFault::Bad(bad) => Self::Bad(bad),
            TimeFault::Ambiguous(found) => Self::AmbiguousTime(found),
        }
    }
}

/// The columns while they are filled, in the order of the file.
#[derive(Debug)]
pub(super) struct Columns<'o> {
    reader: Times,
    cost_names: &'o [String],
    times: Vec<u64>,
    costs: Vec<u64>,
    keys: Option<(KeyTable, Vec<u32>)>,
    out_of_order: u64,
}

impl<'o> Columns<'o> {
    pub(super) fn new(reader: Times, keyed: bool, cost_names: &'o [String]) -> Self {
        Self {
            reader,
            cost_names,
            times: Vec::new(),
            costs: Vec::new(),
            keys: keyed.then(|| (KeyTable::new(), Vec::new())),
            out_of_order: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// How times are read; `None` before the first row.
    pub(super) fn time_reading(&self) -> Option<TimeReading> {
        self.reader.reading()
    }

    /// How many rows are earlier than the one before.
    pub(super) fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Adds a row, or leaves the columns as they were.
    pub(super) fn push(&mut self, row: &impl Row) -> Result<(), RowFault> {
        let time = self.reader.read(&row.field(Slot::Time)?)?;
        let mut sum = 0_u64;
        for (index, name) in self.cost_names.iter().enumerate() {
            let text = row.field(Slot::Cost(index))?;
            let text = text.trim_ascii();
            let cost = number::whole(text).ok_or_else(|| BadLine {
                expected: Expected::Cost(name.as_str().into()),
                found: Found::text(text),
            })?;
            sum =
                sum.checked_add(cost).ok_or(BadLine { expected: Expected::CostSum, found: Found::Longer })?;
        }
        if self.times.len() >= u32::MAX as usize {
            return Err(RowFault::TooMany);
        }
        // The key comes last: a row that is bad must not leave its key behind.
        if let Some((table, ids)) = &mut self.keys {
            ids.push(table.id(&row.field(Slot::Key)?).ok_or(RowFault::TooMany)?);
        }
        if !self.cost_names.is_empty() {
            self.costs.push(sum);
        }
        if self.times.last().is_some_and(|last| time < *last) {
            self.out_of_order += 1;
        }
        self.times.push(time);
        Ok(())
    }

    /// The arrivals in time order; equal times keep the order of the file.
    pub(super) fn finish(self) -> Arrivals {
        let Self { mut times, mut costs, keys, out_of_order, .. } = self;
        let (table, mut ids) = keys.map_or((None, Vec::new()), |(table, ids)| (Some(table), ids));
        if out_of_order > 0 {
            let order = stable_order(&times);
            // One at a time: each old column is gone before the next new one is made.
            times = permuted(&order, times);
            costs = permuted(&order, costs);
            ids = permuted(&order, ids);
        }
        Arrivals {
            times,
            costs: if self.cost_names.is_empty() { Costs::One } else { Costs::Each(costs) },
            keys: table.map(|table| Keys { ids, names: table.into_names() }),
        }
    }
}

/// The places of `times` in ascending order. The caller has checked that 32 bits hold them.
fn stable_order(times: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0_u32..).zip(times).map(|(index, _)| index).collect();
    order.sort_by_key(|&index| times[index as usize]);
    order
}

/// The column in this order; an empty column, one that was not asked for, stays empty. The old one is gone on return.
fn permuted<T: Copy>(order: &[u32], column: Vec<T>) -> Vec<T> {
    if column.is_empty() {
        return column;
    }
    order.iter().map(|&index| column[index as usize]).collect()
}
