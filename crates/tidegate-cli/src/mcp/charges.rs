//! Which requests are charged, and how much.

use serde_json::value::RawValue;

use super::lenient::Members;
use crate::limits::tools::{Cost, ToolCost};

/// A request that can be charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Method {
    #[value(skip)]
    CallTool,
    #[value(name = "resources/read")]
    ReadResource,
    #[value(name = "prompts/get")]
    GetPrompt,
}

impl Method {
    const ALL: [Self; 3] = [Self::CallTool, Self::ReadResource, Self::GetPrompt];

    /// Its name in the protocol. The limits know all but tool calls by it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CallTool => "tools/call",
            Self::ReadResource => "resources/read",
            Self::GetPrompt => "prompts/get",
        }
    }
}

/// What is charged besides tool calls, and what a call costs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Charges {
    pub(crate) also: Vec<Method>,
    /// The first that fits counts; a tool that none fits costs 1.
    pub(crate) costs: Vec<ToolCost>,
    /// Whether a call that goes on with one that the server has asked something back for is charged again. A client that
    /// paces itself was charged before; one from outside may only say so.
    pub(crate) continuations: bool,
}

impl Charges {
    /// The request of this name, if it is charged.
    pub(crate) fn method(&self, name: &str) -> Option<Method> {
        let known = Method::ALL.into_iter().find(|method| method.name() == name)?;
        (known == Method::CallTool || self.also.contains(&known)).then_some(known)
    }

    pub(crate) fn cost(&self, tool: &str, arguments: Option<&RawValue>, goes_on: bool) -> u64 {
        if goes_on && !self.continuations {
            return 0;
        }
        match self.costs.iter().find(|own| own.name.fits(tool)).map(|own| &own.cost) {
            None => 1,
            Some(Cost::Fixed(cost)) => *cost,
            Some(Cost::Argument(names)) => {
                arguments.and_then(|root| argument(root, names)).unwrap_or(1).max(1)
            }
        }
    }
}

/// As much as an argument says: a number, rounded up, or how many elements a list has.
fn argument(root: &RawValue, names: &[Box<str>]) -> Option<u64> {
    let mut value = root;
    for name in names {
        value = Members::of(value, [&**name])?.get(0)?;
    }
    let value = value.get();
    match value.as_bytes().first()? {
        b'[' => {
            let elements: Vec<serde::de::IgnoredAny> = serde_json::from_str(value).ok()?;
            return u64::try_from(elements.len()).ok();
        }
        b'-' | b'0'..=b'9' => {}
        _ => return None,
    }
    if let Ok(whole) = value.parse() {
        return Some(whole);
    }
    // With a fraction, an exponent or a sign; what is beyond u64, or beyond f64, costs more than any limit has.
    let number: f64 = value.parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and below 0 it is 0"
    )]
    Some(number.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_fixed_or_that_of_an_argument_and_at_least_1() {
        let cost =
            |name: &str, cost: &str| ToolCost { name: name.parse().unwrap(), cost: cost.parse().unwrap() };
        let charges = Charges {
            costs: vec![cost("free", "0"), cost("n", "args.n"), cost("deep", "args.a.b"), cost("web_*", "5")],
            ..Charges::default()
        };
        for (tool, arguments, expected) in [
            ("other", "{}", 1),
            ("free", "{}", 0),
            ("web_x", "{}", 5),
            ("n", r#"{"n":7}"#, 7),
            ("n", r#"{"n":2.1}"#, 3),
            ("n", r#"{"n":1e3}"#, 1_000),
            ("n", r#"{"n":1e99}"#, u64::MAX),
            ("n", r#"{"n":1e999}"#, u64::MAX),
            ("n", r#"{"n":-1e999}"#, 1),
            ("n", r#"{"\ud800":0,"n":7}"#, 7),
            ("n", r#"{"N":7}"#, 7),
            ("n", r#"{"n":3,"N":7}"#, 3),
            ("n", r#"{"n":7,"n":3}"#, 3),
            ("n", r#"{"n":99999999999999999999999}"#, u64::MAX),
            ("n", r#"{"n":[1,[2],{}]}"#, 3),
            ("n", r#"{"\u006e":4}"#, 4),
            // Nobody calls for less than nothing.
            ("n", r#"{"n":-7}"#, 1),
            ("n", r#"{"n":0}"#, 1),
            ("n", r#"{"n":"7"}"#, 1),
            ("n", r#"{"n":null}"#, 1),
            ("n", "{}", 1),
            ("n", "[]", 1),
            ("deep", r#"{"a":{"b":9},"b":2}"#, 9),
            ("deep", r#"{"a":[9]}"#, 1),
        ] {
            let arguments: Box<RawValue> = serde_json::from_str(arguments).unwrap();
            assert_eq!(charges.cost(tool, Some(&arguments), false), expected, "{tool} {arguments}");
        }
        assert_eq!(charges.cost("n", None, false), 1);
        assert_eq!(charges.cost("web_x", None, true), 0);
        assert_eq!(Charges { continuations: true, ..charges }.cost("web_x", None, true), 5);
    }
}
