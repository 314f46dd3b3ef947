//! What a limits file says of tools: which of them a limit is for, and what a call of one costs.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer};

/// A name of a tool, in which each `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(Box<str>);

impl Pattern {
    pub(crate) fn fits(&self, name: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else { return *self.0 == *name };
        let Some(mut name) = name.strip_prefix(start) else { return false };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The first place for each part leaves the most for those behind it.
        for part in middle.split('*') {
            match name.find(part) {
                Some(at) => name = &name[at + part.len()..],
                None => return false,
            }
        }
        name.ends_with(end)
    }
}

impl FromStr for Pattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() { Err("a tool has a name") } else { Ok(Self(text.into())) }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// What a call takes of each limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cost {
    Fixed(u64),
    /// As much as an argument says; the names on the way to it.
    Argument(Box<[Box<str>]>),
}

/// What a cost looks like.
const COSTS: &str = "a cost such as 5, or \"args.count\" for what the argument `count` says";

impl FromStr for Cost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(cost) = text.parse() {
            return Ok(Self::Fixed(cost));
        }
        let names = text.strip_prefix("args.").filter(|path| path.split('.').all(|name| !name.is_empty()));
        let names = names.map(|path| path.split('.').map(Box::from).collect());
        names.map(Self::Argument).ok_or_else(|| format!("`{text}` is no cost; write {COSTS}"))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(cost) => cost.fmt(f),
            Self::Argument(names) => write!(f, "args.{}", names.join(".")),
        }
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CostVisitor)
    }
}

struct CostVisitor;

impl serde::de::Visitor<'_> for CostVisitor {
    type Value = Cost;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(COSTS)
    }

    fn visit_i64<E: serde::de::Error>(self, cost: i64) -> Result<Cost, E> {
        u64::try_from(cost)
            .map(Cost::Fixed)
            .map_err(|_| E::invalid_value(Unexpected::Signed(cost), &"a cost of at least 0"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Cost, E> {
        text.parse().map_err(E::custom)
    }
}

/// The cost of the tools whose name fits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a tool such as { name = \"search\", cost = 5 }")]
pub(crate) struct ToolCost {
    pub(crate) name: Pattern,
    pub(crate) cost: Cost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, fits, fits_not) in [
            ("search", &["search"][..], &["search2", "", "Search"][..]),
            ("*", &["", "x"], &[]),
            ("web_*", &["web_", "web_search"], &["web", "aweb_x"]),
            ("*_x", &["_x", "a_x", "_x_x"], &["_xy", "x"]),
            ("a*a", &["aa", "aba"], &["a", "ab"]),
            ("a*b*c", &["abc", "axbxc", "abbcc"], &["acb", "ab", "ac"]),
            ("*ab*ab*", &["abab", "xabyabz"], &["ab", "aba", "xaby"]),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert!(fits.iter().all(|name| pattern.fits(name)), "{pattern}");
            assert!(!fits_not.iter().any(|name| pattern.fits(name)), "{pattern}");
        }
    }

    #[test]
    fn a_cost_is_a_number_or_an_argument() {
        for (text, shown) in [
            ("0", Some("0")),
            ("5", Some("5")),
            ("args.a.b", Some("args.a.b")),
            ("args.", None),
            ("args.a..b", None),
            ("-1", None),
            ("1.5", None),
            ("count", None),
        ] {
            let cost = text.parse::<Cost>();
            assert_eq!(cost.as_ref().map(ToString::to_string).ok().as_deref(), shown);
        }
        assert_eq!(
            "x".parse::<Cost>().unwrap_err(),
            "`x` is no cost; write a cost such as 5, or \"args.count\" for what the argument `count` says"
        );
    }
}
