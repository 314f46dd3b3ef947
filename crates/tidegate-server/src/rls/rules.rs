//! Which limits a descriptor is under, and whose tokens it takes there.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::{Mode, Quota};
use tidegate_http::layer::Key;

use super::proto::{RateLimitRequest, rate_limit_descriptor::Entry};
use super::rate::Rate;

/// Descriptors that a limit is for: `shop: path=/login, user=*`.
///
/// That is a domain, and a path of entries in their order. `*` stands for any value and gives each value tokens of its own. A
/// value in quotes, `'a, b'` or `'*'`, is meant as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern {
    domain: Box<str>,
    entries: Box<[(Box<str>, Value)]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Value {
    Any,
    Is(Box<str>),
}

/// What is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WrongRule {
    /// A pattern without a domain.
    #[error("`{0}` has no domain; write it in front, as in `shop: path=/login, user=*`")]
    NoDomain(Box<str>),
    /// A part of a pattern that is no entry.
    #[error("`{0}` is no entry of a descriptor; write `key=value`, or `key=*` for each value")]
    NoEntry(Box<str>),
    /// A value that holds a star and is none.
    #[error(
        "`{0}` has a star beside other text; write `*` alone for each value, or put the value in quotes: '{0}'"
    )]
    PartOfStar(Box<str>),
    /// A value that is not closed.
    #[error("`{0}` has a quote that is not closed")]
    Open(Box<str>),
    /// A rule without a pattern.
    #[error("no descriptor is named")]
    NoDescriptor,
    /// Patterns whose tokens cannot be told apart by the same values.
    #[error(
        "`{0}` and `{1}` have different keys for `*`; they share their tokens, so write the same in the same order"
    )]
    KeysApart(Pattern, Pattern),
}

impl Pattern {
    /// The keys of the entries that stand for any value: whose tokens they are.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(_, value)| *value == Value::Any).map(|(key, _)| &**key)
    }

    fn fits(&self, entries: &[Entry]) -> bool {
        let fits = |((key, value), entry): (&(Box<str>, Value), &Entry)| {
            **key == *entry.key
                && match value {
                    Value::Any => true,
                    Value::Is(value) => **value == *entry.value,
                }
        };
        self.entries.len() == entries.len() && self.entries.iter().zip(entries).all(fits)
    }

    /// Whose tokens a descriptor takes, which fits.
    fn key<'a>(&self, entries: &'a [Entry]) -> Key<'a> {
        let any = self.entries.iter().zip(entries).filter(|((_, value), _)| *value == Value::Any);
        let keys = any.map(|(_, entry)| Key::from(&*entry.value));
        keys.reduce(Key::and).unwrap_or(Key::everyone())
    }

    /// Less is more: what is said of the first entries counts first.
    fn vagueness(&self) -> impl Ord + use<> {
        self.entries.iter().map(|(_, value)| *value == Value::Any).collect::<Vec<_>>()
    }
}

impl FromStr for Pattern {
    type Err = WrongRule;

    fn from_str(text: &str) -> Result<Self, WrongRule> {
        let (domain, mut rest) = text.split_once(':').unwrap_or(("", text));
        // The domain ends at a colon, and a value can have some.
        if domain.trim().is_empty() || domain.contains(['=', ',']) {
            return Err(WrongRule::NoDomain(text.into()));
        }
        let mut entries = Vec::new();
        loop {
            let no_entry = || WrongRule::NoEntry(rest.trim().into());
            let (key, behind) = rest.split_once('=').ok_or_else(no_entry)?;
            let (key, behind) = (key.trim(), behind.trim_start());
            if key.is_empty() || key.contains(',') {
                return Err(no_entry());
            }
            let (value, behind) = match behind.strip_prefix('\'') {
                Some(quoted) => {
                    let (value, behind) =
                        quoted.split_once('\'').ok_or_else(|| WrongRule::Open(rest.trim().into()))?;
                    (Value::Is(value.into()), behind.trim_start())
                }
                None => {
                    let end = behind.find(',').unwrap_or(behind.len());
                    let (value, behind) = behind.split_at(end);
                    match value.trim() {
                        "*" => (Value::Any, behind),
                        "" => return Err(no_entry()),
                        value if value.contains('*') => return Err(WrongRule::PartOfStar(value.into())),
                        value => (Value::Is(value.into()), behind),
                    }
                }
            };
            entries.push((key.into(), value));
            match behind.strip_prefix(',') {
                Some(others) => rest = others,
                None if behind.is_empty() => break,
                None => return Err(WrongRule::NoEntry(behind.into())),
            }
        }
        Ok(Self { domain: domain.trim().into(), entries: entries.into() })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.entries.iter().enumerate() {
            match at {
                0 => write!(f, "{}: ", self.domain)?,
                _ => f.write_str(", ")?,
            }
            match value {
                Value::Any => write!(f, "{key}=*")?,
                // What would be trimmed away, or taken for something else.
                Value::Is(value)
                    if value.contains(|other: char| matches!(other, ',' | '*') || other.is_whitespace())
                        || value.is_empty() =>
                {
                    write!(f, "{key}='{value}'")?;
                }
                Value::Is(value) => write!(f, "{key}={value}")?,
            }
        }
        Ok(())
    }
}

/// One limit on descriptors. The limit itself is kept by a [`RateLimit`](tidegate_http::RateLimit) under the same name.
#[derive(Debug, Clone)]
pub struct Rule {
    limit: Arc<Ruled>,
    descriptors: Vec<Pattern>,
}

/// What is to be known of a limit to speak of it.
#[derive(Debug, Clone)]
pub(super) struct Ruled {
    pub(super) name: Box<str>,
    pub(super) mode: Mode,
    /// `None` if it limits nothing.
    rate: Option<Rate>,
    overrides: HashMap<Key<'static>, Rate>,
}

impl Ruled {
    /// The rate of a key.
    pub(super) fn rate(&self, key: &Key<'_>) -> Option<Rate> {
        // Most limits have no keys with a quota of their own.
        if self.overrides.is_empty() { self.rate } else { self.overrides.get(key).copied().or(self.rate) }
    }
}

impl Rule {
    /// A limit of that name and quota on these descriptors. Those of several patterns take the same tokens if the values for
    /// their stars are the same.
    ///
    /// # Errors
    ///
    /// No pattern, and patterns with different keys for stars.
    pub fn new(name: &str, quota: Quota, descriptors: Vec<Pattern>) -> Result<Self, WrongRule> {
        let Some((first, others)) = descriptors.split_first() else { return Err(WrongRule::NoDescriptor) };
        if let Some(other) = others.iter().find(|other| !other.keys().eq(first.keys())) {
            return Err(WrongRule::KeysApart(first.clone(), other.clone()));
        }
        let ruled = Ruled {
            name: name.into(),
            mode: Mode::Enforce,
            rate: Some(Rate::of(quota)),
            overrides: HashMap::new(),
        };
        Ok(Self { limit: Arc::new(ruled), descriptors })
    }

    /// It limits nothing: descriptors for which another limit would be there are not limited. No limit has to be kept for it.
    #[must_use]
    pub fn unlimited(mut self) -> Self {
        let limit = Arc::make_mut(&mut self.limit);
        (limit.rate, limit.overrides) = (None, HashMap::new());
        self
    }

    /// It is in shadow: it is charged, and refuses nothing.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        Arc::make_mut(&mut self.limit).mode = Mode::Shadow;
        self
    }

    /// A key has another quota.
    #[must_use]
    pub fn quota_for(mut self, key: Key<'static>, quota: Quota) -> Self {
        Arc::make_mut(&mut self.limit).overrides.insert(key, Rate::of(quota));
        self
    }
}

/// Which limits a descriptor is under: those with the pattern that fits best.
///
/// A pattern fits a descriptor that has its domain, and its keys in the same order and no others. The best one is that which says
/// the value of the first entry; among those that do, or do not, the second, and so on. All limits that have this pattern
/// are for the descriptor. The patterns of a domain are tried one after the other.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    names: Vec<Box<str>>,
    domains: HashMap<Box<str>, Vec<Fitting>>,
}

/// A pattern, and the limits that have it.
type Fitting = (Pattern, Vec<Arc<Ruled>>);

/// One for each descriptor or limit of it: most requests have one, for which nothing is allocated.
pub(super) type Few<T> = SmallVec<[T; 1]>;

/// What is asked for a request.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    pub(super) charges: Few<Take<'a>>,
    pub(super) looks: Few<Take<'a>>,
    /// Where each descriptor finds its answers.
    pub(super) descriptors: Few<Few<Place>>,
}

#[derive(Debug)]
pub(super) struct Take<'a> {
    pub(super) limit: &'a Ruled,
    pub(super) key: Key<'a>,
    pub(super) cost: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Charge(usize),
    Look(usize),
}

impl Rules {
    /// Those of these limits.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        let mut domains: HashMap<Box<str>, Vec<Fitting>> = HashMap::new();
        let names = rules.iter().map(|rule| rule.limit.name.clone()).collect();
        let mut of_patterns: HashMap<Pattern, Vec<Arc<Ruled>>> = HashMap::new();
        for rule in rules {
            for pattern in rule.descriptors {
                let limits = of_patterns.entry(pattern).or_default();
                // A limit may say a pattern twice.
                let is_there = limits.iter().any(|other| Arc::ptr_eq(other, &rule.limit));
                if rule.limit.rate.is_some() && !is_there {
                    limits.push(Arc::clone(&rule.limit));
                }
            }
        }
        for (pattern, limits) in of_patterns {
            domains.entry(pattern.domain.clone()).or_default().push((pattern, limits));
        }
        for patterns in domains.values_mut() {
            patterns.sort_by_cached_key(|(pattern, _)| pattern.vagueness());
        }
        Self { names, domains }
    }

    /// The names of the limits, in the order in which they came.
    pub fn limits(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// What a request takes. Descriptors that take from the same tokens add up.
    pub(super) fn plan<'a>(&'a self, request: &'a RateLimitRequest) -> Plan<'a> {
        let mut plan = Plan::default();
        let patterns = self.domains.get(&*request.domain).map_or(&[][..], Vec::as_slice);
        let usual = u64::from(request.hits_addend.max(1));
        let found: Few<_> = request
            .descriptors
            .iter()
            .map(|descriptor| {
                let cost = descriptor.hits_addend.unwrap_or(usual);
                let best = patterns.iter().find(|(pattern, _)| pattern.fits(&descriptor.entries));
                best.map(|(pattern, limits)| (pattern.key(&descriptor.entries), limits, cost))
            })
            .collect();
        for (key, limits, cost) in found.iter().flatten().filter(|(_, _, cost)| *cost > 0) {
            for limit in *limits {
                match find(&plan.charges, limit, key) {
                    Some(at) => plan.charges[at].cost = plan.charges[at].cost.saturating_add(*cost),
                    None => plan.charges.push(Take { limit, key: key.clone(), cost: *cost }),
                }
            }
        }
        for found in found {
            let mut places = Few::new();
            for (key, limit) in
                found.iter().flat_map(|(key, limits, _)| limits.iter().map(move |limit| (key, limit)))
            {
                // What is charged anyway need not be looked at.
                places.push(match find(&plan.charges, limit, key) {
                    Some(at) => Place::Charge(at),
                    None => Place::Look(find(&plan.looks, limit, key).unwrap_or_else(|| {
                        // There has to be one at least.
                        plan.looks.push(Take { limit, key: key.clone(), cost: 1 });
                        plan.looks.len() - 1
                    })),
                });
            }
            plan.descriptors.push(places);
        }
        plan
    }
}

fn find(takes: &[Take<'_>], limit: &Ruled, key: &Key<'_>) -> Option<usize> {
    takes.iter().position(|take| std::ptr::eq(take.limit, limit) && take.key == *key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rls::proto::RateLimitDescriptor;

    fn rule(name: &str, descriptors: &[&str]) -> Rule {
        let patterns = descriptors.iter().map(|text| text.parse().unwrap()).collect();
        Rule::new(name, "1/s".parse().unwrap(), patterns).unwrap()
    }

    fn descriptor(entries: &[(&str, &str)], hits_addend: Option<u64>) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        RateLimitDescriptor { entries: entries.iter().map(entry).collect(), hits_addend }
    }

    fn shown(takes: &[Take<'_>]) -> Vec<String> {
        takes.iter().map(|take| format!("{} {} {}", take.limit.name, take.key, take.cost)).collect()
    }

    #[test]
    fn a_pattern_is_read_as_it_is_printed() {
        for text in [
            "shop: path=/login, user=*",
            "shop: user=*",
            "a.b/c: url=http://x:80/?q=1",
            "shop: list='a, b', star='*', none='', spaces=' a '",
            "shop: tab='\t', line='a\n', wide='\u{3000}a'",
        ] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        assert_eq!("shop:a=1,b = *".parse::<Pattern>(), "shop: a=1, b=*".parse());
        for (text, expected) in [
            ("", "`` has no domain; write it in front, as in `shop: path=/login, user=*`"),
            ("path=a:b", "`path=a:b` has no domain; write it in front, as in `shop: path=/login, user=*`"),
            (": a=b", "`: a=b` has no domain; write it in front, as in `shop: path=/login, user=*`"),
            ("shop:", "`` is no entry of a descriptor; write `key=value`, or `key=*` for each value"),
            (
                "shop: user",
                "`user` is no entry of a descriptor; write `key=value`, or `key=*` for each value",
            ),
            (
                "shop: a=, b=*",
                "`a=, b=*` is no entry of a descriptor; write `key=value`, or `key=*` for each value",
            ),
            (
                "shop: a, b=1",
                "`a, b=1` is no entry of a descriptor; write `key=value`, or `key=*` for each value",
            ),
            ("shop: a=1,", "`` is no entry of a descriptor; write `key=value`, or `key=*` for each value"),
            (
                "shop: a='1' 2",
                "`2` is no entry of a descriptor; write `key=value`, or `key=*` for each value",
            ),
            (
                "shop: path=/img/*",
                "`/img/*` has a star beside other text; write `*` alone for each value, or put the value in quotes: '/img/*'",
            ),
            ("shop: a='b", "`a='b` has a quote that is not closed"),
        ] {
            assert_eq!(text.parse::<Pattern>().unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn patterns_of_a_limit_share_tokens_by_the_same_keys() {
        let patterns = ["shop: a=1, user=*", "bank: user=*"].map(|text| text.parse().unwrap());
        assert!(Rule::new("x", "1/s".parse().unwrap(), patterns.to_vec()).is_ok());
        let patterns = ["shop: a=1, user=*", "bank: a=*"].map(|text| text.parse().unwrap());
        let error = Rule::new("x", "1/s".parse().unwrap(), patterns.to_vec()).unwrap_err();
        assert!(matches!(error, WrongRule::KeysApart(..)), "{error}");
        assert_eq!(Rule::new("x", "1/s".parse().unwrap(), vec![]).unwrap_err(), WrongRule::NoDescriptor);
    }

    #[test]
    fn the_pattern_that_says_most_of_the_first_entries_is_taken() {
        let rules = Rules::new(vec![
            rule("each-pair", &["shop: path=*, user=*"]),
            rule("each-at-login", &["shop: path=/login, user=*"]),
            rule("ann", &["shop: path=*, user=ann"]),
            rule("also-each-at-login", &["shop: path=/login, user=*"]),
            rule("path", &["shop: path=/login"]),
            rule("other", &["bank: path=/login"]),
            rule("root", &["shop: path=/login, user=root"]).unlimited(),
        ]);
        for (entries, expected) in [
            (
                &[("path", "/login"), ("user", "ann")][..],
                &["each-at-login ann 1", "also-each-at-login ann 1"][..],
            ),
            (&[("path", "/buy"), ("user", "ann")], &["ann /buy 1"]),
            (&[("path", "/buy"), ("user", "bob")], &["each-pair /buy bob 1"]),
            (&[("path", "/login")], &["path * 1"]),
            (&[("path", "/login"), ("user", "root")], &[]),
            (&[("path", "/buy")], &[]),
            (&[("user", "ann"), ("path", "/login")], &[]),
            (&[("path", "/login"), ("user", "ann"), ("x", "y")], &[]),
        ] {
            let descriptors = vec![descriptor(entries, None)];
            let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 };
            let plan = rules.plan(&request);
            assert_eq!(shown(&plan.charges), expected, "{entries:?}");
            assert_eq!(plan.descriptors[0].len(), expected.len());
            assert!(
                rules.plan(&RateLimitRequest { domain: "Shop".into(), ..request.clone() }).charges.is_empty()
            );
        }
    }

    #[test]
    fn what_a_request_costs_is_said_by_the_descriptor_first() {
        let rules = Rules::new(vec![rule("user", &["shop: user=*"]), rule("all", &["shop: all=yes"])]);
        let descriptors = vec![
            descriptor(&[("user", "ann")], None),
            descriptor(&[("user", "bob")], Some(3)),
            descriptor(&[("all", "yes")], Some(0)),
            descriptor(&[("user", "ann")], Some(5)),
            descriptor(&[("user", "ann")], Some(0)),
            descriptor(&[("nobody", "knows")], Some(9)),
        ];
        let mut request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 2 };
        let plan = rules.plan(&request);
        assert_eq!(shown(&plan.charges), ["user ann 7", "user bob 3"]);
        assert_eq!(shown(&plan.looks), ["all * 1"]);
        let place = |descriptor: usize| plan.descriptors[descriptor].first().copied();
        let charge = |at| Some(Place::Charge(at));
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(place),
            [charge(0), charge(1), Some(Place::Look(0)), charge(0), charge(0), None]
        );
        drop(plan);
        request.hits_addend = 0;
        assert_eq!(shown(&rules.plan(&request).charges), ["user ann 6", "user bob 3"]);
    }
}
