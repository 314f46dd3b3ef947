//! Profiles: which header or which member of a body says what, as data.
//!
//! A [`Profile`] is a family of names that belong together, with the providers that send it. [`PROFILES`] holds all that
//! are known; their names do not collide, so a response is read without being told who sent it. Where a service uses a
//! known name with another meaning (`x-ratelimit-reset` in milliseconds, say), a profile of your own goes first:
//! [`Response::profile`](super::Response::profile).

pub use super::tables::PROFILES;

/// A family of header names and body members that belong together.
///
/// Counters of one profile that are about the same dimension belong together; those of different profiles do not, even
/// if their dimensions have the same name.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// Its name, for people.
    pub name: &'static str,
    /// Who is known to send it.
    pub providers: &'static [&'static str],
    /// What its headers say. The first that matches a name counts.
    pub headers: &'static [Rule],
    /// What members of a JSON body say. All that match count.
    pub body: &'static [BodyRule],
}

/// What a header says.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The header's name in lower case. One `*` stands for the name of a dimension.
    pub header: &'static str,
    /// What it says.
    pub says: Says,
}

/// What a header says. The text in a variant is the name of a dimension, where `*` is what the star in the header's name
/// stands for, with `-` written as `_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Says {
    /// How long to wait: an instruction.
    Wait(Form),
    /// gRPC's pushback in milliseconds: an instruction. Anything but a number of at least 0 forbids to retry.
    Pushback,
    /// A `google.rpc.Status` in base64, whose `RetryInfo` is an instruction.
    StatusDetails,
    /// The limit of a dimension.
    Limit(&'static str),
    /// What is left in a dimension. -1 stands for unknown.
    Remaining(&'static str),
    /// When a dimension has quota again.
    Reset(&'static str, Form),
    /// The same as time from now. It is preferred to [`Self::Reset`], since it needs no clock.
    ResetAfter(&'static str, Form),
    /// A word instead of a counter: if it is this one, the dimension is empty.
    EmptyIf(&'static str, &'static str),
    /// What is used and the limit, as `32/40`.
    UsedOfLimit(&'static str),
    /// `RateLimit` of the IETF draft: a list of items, or the dictionary of its seventh edition.
    RateLimit,
    /// `RateLimit-Policy` of the IETF draft.
    RateLimitPolicy,
    /// The name of the dimension that is `default` in this profile.
    Bucket,
    /// Words, and what each means.
    Words(&'static [(&'static str, Meaning)]),
}

/// What a member of a JSON body says.
#[derive(Debug, Clone, Copy)]
pub struct BodyRule {
    /// Where it is.
    pub path: &'static [Step],
    /// In which answers it counts.
    pub when: When,
    /// What it says.
    pub says: BodySays,
}

/// A step into a JSON document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The member with this name.
    Key(&'static str),
    /// All members whose names end like this.
    KeyEnding(&'static str),
    /// All elements of an array (64 at most) whose member of the first name ends like the second.
    EachWhere(&'static str, &'static str),
}

/// In which answers a member of a body counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// In all: its place leaves no doubt about what it means.
    Always,
    /// If the status is 400 or above.
    Failed,
    /// If `result.isError` is true, as in an answer of MCP.
    ToolFailed,
}

/// What a member of a body says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodySays {
    /// How long to wait: an instruction.
    Wait(Form),
    /// A sentence that may hold an instruction, such as `Please retry in 52.4s`,
    /// `try again in 6m0s` or `retry after 6 seconds`.
    Sentence,
    /// A sentence that holds this text (in lower case) means a wait of so many seconds, as the provider's documentation
    /// says, if nothing else in the answer tells one.
    Documented(&'static str, u64),
    /// Words, and what each means. A boolean is `true` or `false`.
    Words(&'static [(&'static str, Meaning)]),
    /// Shopify's cost of a query and what is available: the wait is a formula.
    Cost,
}

/// How a time is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// As in `Retry-After`: seconds, or an HTTP-date.
    RetryAfter,
    /// Seconds, with or without decimals.
    Seconds,
    /// Milliseconds, with or without decimals.
    Milliseconds,
    /// Whole milliseconds.
    WholeMilliseconds,
    /// A Go duration such as `6m0s`. A bare number is seconds.
    GoDuration,
    /// A protobuf duration in JSON, such as `57.238747106s`.
    ProtoDuration,
    /// Whatever it looks like: seconds from now, seconds or milliseconds since 1970, a Go duration, RFC 3339, HTTP-date.
    Untyped,
}

/// What a word means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meaning {
    /// The server does not want this call again.
    NoRetry,
    /// The account has nothing left to spend, and no wait changes that.
    QuotaSpent,
    /// All calls are meant, not just those of a bucket.
    Global,
    /// What refused the call is a limit of what is in flight.
    InFlight,
    /// The resets in this answer were rounded down to whole seconds.
    RoundedDown,
}

/// The dimension that `name` stands for if `pattern` (one `*` at most) matches it; empty without a star.
pub(super) fn captured<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((before, after)) => {
            let dimension = name.strip_prefix(before)?.strip_suffix(after)?;
            (!dimension.is_empty()).then_some(dimension)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_a_dimension() {
        assert_eq!(captured("retry-after", "retry-after"), Some(""));
        assert_eq!(captured("retry-after", "retry-after-ms"), None);
        assert_eq!(captured("x-ratelimit-reset-*", "x-ratelimit-reset-tokens"), Some("tokens"));
        assert_eq!(captured("x-ratelimit-reset-*", "x-ratelimit-reset-"), None);
        assert_eq!(captured("a-*-reset", "a-input-tokens-reset"), Some("input-tokens"));
        assert_eq!(captured("a-*-reset", "a-reset"), None);
    }

    #[test]
    fn no_header_is_claimed_by_two_profiles() {
        let rules =
            || PROFILES.iter().flat_map(|profile| profile.headers.iter().map(move |rule| (profile, rule)));
        for (profile, rule) in rules() {
            assert_eq!(rule.header, rule.header.to_ascii_lowercase());
            let example = rule.header.replace('*', "requests");
            let claims = rules().filter(|(_, other)| captured(other.header, &example).is_some());
            let first = claims.map(|(claims, _)| claims.name).next();
            assert_eq!(first, Some(profile.name), "{}", rule.header);
        }
    }

    #[test]
    fn the_table_covers_many_providers() {
        let mut providers: Vec<_> = PROFILES.iter().flat_map(|profile| profile.providers).collect();
        providers.sort_unstable();
        providers.dedup();
        providers.retain(|provider| !["http", "generic", "ietf", "grpc", "mcp"].contains(provider));
        assert!(providers.len() > 25, "{providers:?}");
    }
}
