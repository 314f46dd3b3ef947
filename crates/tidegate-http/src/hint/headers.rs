//! The headers of a response, and what they say.

use super::evidence::Evidence;
use super::form::Clock;
use super::number::{MILLISECOND, decimal, whole_number};
use super::profile::{Form, Profile, Says, captured};
use super::structured::{Bare, Item, dictionary, list};
use super::{NAME_MAX, NoRetry, Note, Signal, Source, VALUE_MAX};

/// Reads what `profiles` know of `fields` into `evidence`. Counters are not read if they are `stale`.
pub(super) fn read<'a>(
    fields: &[(&[u8], &[u8])],
    clock: Clock,
    stale: bool,
    profiles: &(impl Iterator<Item = &'a Profile> + Clone),
    evidence: &mut Evidence,
) {
    // The two fields that are lists are read as a whole, all lines together.
    let mut rate_limit = Vec::new();
    let mut policy = Vec::new();
    for (name, value) in fields {
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_MAX) else {
            continue;
        };
        let name = name.to_ascii_lowercase();
        let found = profiles.clone().find_map(|profile| {
            let rules = profile.headers.iter();
            rules.filter_map(|rule| Some((profile, rule.says, captured(rule.header, &name)?))).next()
        });
        let Some((profile, says, captured)) = found else { continue };
        let value = value.trim_ascii();
        if value.len() > VALUE_MAX {
            evidence.unreadable(Signal::new(Source::Header, &name, value));
            continue;
        }
        if stale && is_counter(says) {
            evidence.note(Note::Stale);
            continue;
        }
        match says {
            Says::RateLimit => join(&mut rate_limit, value),
            Says::RateLimitPolicy => join(&mut policy, value),
            _ => {
                let field = Field { family: profile.name, name: &name, captured, value, clock };
                field.apply(says, evidence);
            }
        }
    }
    if !rate_limit.is_empty() {
        read_rate_limit(&rate_limit, evidence);
    }
    read_policy(&policy, evidence);
}

fn is_counter(says: Says) -> bool {
    !matches!(says, Says::Wait(_) | Says::Pushback | Says::StatusDetails | Says::Words(_) | Says::Bucket)
}

/// Adds a line to a field, as RFC 9110 5.3 does.
fn join(field: &mut Vec<u8>, line: &[u8]) {
    if field.len().saturating_add(line.len()) > VALUE_MAX {
        return;
    }
    if !field.is_empty() {
        field.extend_from_slice(b", ");
    }
    field.extend_from_slice(line);
}

/// A header that a rule is about.
struct Field<'a> {
    family: &'static str,
    name: &'a str,
    captured: &'a str,
    value: &'a [u8],
    clock: Clock,
}

impl Field<'_> {
    fn signal(&self) -> Signal {
        Signal::new(Source::Header, self.name, self.value)
    }

    fn apply(&self, says: Says, evidence: &mut Evidence) {
        match says {
            Says::Wait(form) => match self.clock.read(form, self.value) {
                Some(reading) => evidence.wait(reading, self.signal()),
                None => evidence.unreadable(self.signal()),
            },
            Says::Pushback => self.pushback(evidence),
            Says::StatusDetails => {
                let delays = self.value.split(|byte| *byte == b',');
                let longest = delays.filter_map(|text| super::grpc::retry_delay(text.trim_ascii())).max();
                if let Some(ns) = longest {
                    evidence.wait(super::form::delay(ns), self.signal());
                }
            }
            Says::Limit(dimension) => {
                if let Some(limit) = leading_count(self.value) {
                    evidence.counter(self.family, &self.dimension(dimension), |counter| {
                        counter.limit = Some(limit);
                    });
                }
            }
            Says::Remaining(dimension) => {
                // Rounded down: with less than 1 left, no call passes.
                let digits = decimal(self.value, 1).and_then(|_| leading_count(self.value));
                if let Some(remaining) = digits {
                    evidence.counter(self.family, &self.dimension(dimension), |counter| {
                        counter.lower_remaining(remaining);
                    });
                }
            }
            Says::Reset(dimension, form) => self.reset(dimension, form, false, evidence),
            Says::ResetAfter(dimension, form) => self.reset(dimension, form, true, evidence),
            Says::EmptyIf(word, dimension) => {
                if self.value.eq_ignore_ascii_case(word.as_bytes()) {
                    evidence.counter(self.family, &self.dimension(dimension), |counter| {
                        counter.lower_remaining(0);
                    });
                }
            }
            Says::UsedOfLimit(dimension) => {
                let mut parts = self.value.split(|byte| *byte == b'/').map(whole_number);
                if let (Some(Some(used)), Some(Some(limit)), None) =
                    (parts.next(), parts.next(), parts.next())
                {
                    evidence.counter(self.family, &self.dimension(dimension), |counter| {
                        counter.limit = Some(limit);
                        counter.lower_remaining(limit.saturating_sub(used));
                    });
                }
            }
            Says::Bucket => {
                if let Some(name) = printable(self.value) {
                    evidence.bucket(self.family, name);
                }
            }
            Says::Words(words) => {
                let said = words.iter().filter(|(word, _)| self.value.eq_ignore_ascii_case(word.as_bytes()));
                for (_, meaning) in said {
                    evidence.meaning(*meaning);
                }
            }
            // Read with all their lines.
            Says::RateLimit | Says::RateLimitPolicy => {}
        }
    }

    fn pushback(&self, evidence: &mut Evidence) {
        let ms = whole_number(self.value).filter(|ms| i32::try_from(*ms).is_ok());
        match ms {
            Some(ms) => {
                let ns = u128::from(ms) * u128::from(MILLISECOND);
                evidence.wait(super::form::delay(ns), self.signal());
            }
            None => evidence.no_retry(NoRetry::Pushback),
        }
    }

    fn reset(&self, dimension: &str, form: Form, is_from_now: bool, evidence: &mut Evidence) {
        let Some(reading) = self.clock.read(form, self.value) else {
            evidence.unreadable(self.signal());
            return;
        };
        evidence.counter(self.family, &self.dimension(dimension), |counter| {
            if is_from_now {
                counter.reset_after(reading.ns, self.signal());
            } else {
                counter.reset(reading.ns, self.signal());
            }
        });
    }

    fn dimension(&self, dimension: &str) -> String {
        match dimension {
            "*" => self.captured.replace('-', "_"),
            _ => dimension.to_owned(),
        }
    }
}

/// The whole number that a value begins with: `2` in `2, 2;w=60`, `0` in `0.0`.
fn leading_count(value: &[u8]) -> Option<u64> {
    let end = value.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(value.len());
    whole_number(value.get(..end)?)
}

fn printable(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    let is_name =
        (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    is_name.then_some(text)
}

/// `RateLimit`: items with `r` and `t`, or the dictionary of the seventh edition. A field with a fault is ignored whole,
/// an item without a whole `r`, or whose `t` is no whole number, alone. No text is both a list and that dictionary.
fn read_rate_limit(field: &[u8], evidence: &mut Evidence) {
    const FAMILY: &str = "ratelimit";
    let signal = || Signal::new(Source::Header, FAMILY, field);
    if let Some(items) = list(field) {
        for item in &items {
            let Bare::Text(name) = &item.value else { continue };
            let Some(remaining) = item.count("r") else { continue };
            let reset = item.count("t");
            if reset.is_none() && item.parameter("t").is_some() {
                evidence.unreadable(signal());
                continue;
            }
            evidence.counter(FAMILY, short(name), |counter| {
                counter.lower_remaining(remaining);
                if let Some(seconds) = reset {
                    counter.reset(super::form::seconds(seconds), signal());
                }
            });
        }
    } else if let Some(members) = dictionary(field) {
        let member = |wanted: &str| match members.iter().rev().find(|(key, _)| key == wanted) {
            Some((_, Item { value: Bare::Integer(number), .. })) => u64::try_from(*number).ok(),
            _ => None,
        };
        if let Some(remaining) = member("remaining") {
            evidence.counter(FAMILY, "default", |counter| {
                counter.limit = member("limit");
                counter.lower_remaining(remaining);
                if let Some(seconds) = member("reset") {
                    counter.reset(super::form::seconds(seconds), signal());
                }
            });
        }
    } else {
        evidence.unreadable(signal());
    }
}

/// `RateLimit-Policy`: the quotas of the dimensions, and how many calls may be in flight.
fn read_policy(field: &[u8], evidence: &mut Evidence) {
    for item in list(field).unwrap_or_default() {
        let Bare::Text(name) = &item.value else { continue };
        let Some(quota) = item.count("q") else { continue };
        if item.parameter("qu") == Some(&Bare::Text("concurrent-requests".to_owned())) {
            evidence.in_flight_limit(quota);
        }
        evidence.counter("ratelimit", short(name), |counter| counter.limit = Some(quota));
    }
}

/// A name of a bounded length. Structured fields are ASCII, so it can be cut anywhere.
fn short(name: &str) -> &str {
    name.get(..NAME_MAX).unwrap_or(name)
}
