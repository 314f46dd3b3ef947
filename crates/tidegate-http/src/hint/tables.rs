//! The profiles that are known, with their sources, and the sentences that tell a wait.
//!
//! The examples and the documents behind each are in `tests/data/retry-hints.json`, entry by entry.

use super::profile::{BodyRule, BodySays, Form, Meaning, Profile, Rule, Says, Step, When};

const fn on(header: &'static str, says: Says) -> Rule {
    Rule { header, says }
}

const fn at(path: &'static [Step], when: When, says: BodySays) -> BodyRule {
    BodyRule { path, when, says }
}

/// All profiles that are known. No header belongs to two of them, except that a name without a star comes before those
/// with one.
pub const PROFILES: &[Profile] = &[
    // RFC 9110 10.2.3. Slack, Microsoft Graph and Kubernetes send nothing else; nginx and Stripe not even this.
    Profile {
        name: "http",
        providers: &["http", "generic", "slack", "microsoft-graph", "kubernetes", "discord", "telegram"],
        headers: &[on("retry-after", Says::Wait(Form::RetryAfter))],
        body: &[
            // Discord: seconds with decimals, of which `Retry-After` is the ceiling.
            at(&[Step::Key("retry_after")], When::Failed, BodySays::Wait(Form::RetryAfter)),
            at(&[Step::Key("global")], When::Failed, BodySays::Words(&[("true", Meaning::Global)])),
            // Telegram Bot API, `ResponseParameters`.
            at(
                &[Step::Key("parameters"), Step::Key("retry_after")],
                When::Failed,
                BodySays::Wait(Form::RetryAfter),
            ),
            at(&[Step::Key("message")], When::Failed, BodySays::Sentence),
        ],
    },
    // The OpenAI family: one dimension for requests and one for tokens, resets as Go durations. Groq's requests are per
    // day and its tokens per minute. Azure OpenAI sends seconds, and -1 for unknown.
    Profile {
        name: "openai",
        providers: &["openai", "azure-openai", "groq", "mistral", "cohere"],
        headers: &[
            on("retry-after-ms", Says::Wait(Form::Milliseconds)),
            on("x-should-retry", Says::Words(&[("false", Meaning::NoRetry)])),
        ],
        body: &[
            at(
                &[Step::Key("error"), Step::Key("code")],
                When::Failed,
                BodySays::Words(&[("insufficient_quota", Meaning::QuotaSpent)]),
            ),
            at(
                &[Step::Key("error"), Step::Key("type")],
                When::Failed,
                BodySays::Words(&[("insufficient_quota", Meaning::QuotaSpent)]),
            ),
            at(&[Step::Key("error"), Step::Key("message")], When::Failed, BodySays::Sentence),
        ],
    },
    // The three headers that everybody sends and nobody specified, and what GitHub, Discord and Envoy add to them.
    Profile {
        name: "x-ratelimit",
        providers: &["generic", "github", "discord", "reddit", "cohere", "envoy", "openai", "groq"],
        headers: &[
            on("x-ratelimit-limit", Says::Limit("default")),
            on("x-ratelimit-remaining", Says::Remaining("default")),
            on("x-ratelimit-reset", Says::Reset("default", Form::Untyped)),
            on("x-ratelimit-reset-after", Says::ResetAfter("default", Form::Seconds)),
            on("x-ratelimit-resource", Says::Bucket),
            on("x-ratelimit-bucket", Says::Bucket),
            on("x-ratelimit-scope", Says::Words(&[("global", Meaning::Global)])),
            on("x-ratelimit-global", Says::Words(&[("true", Meaning::Global)])),
            // Envoy 1.40.0 cuts the fraction off; measured.
            on("x-envoy-ratelimited", Says::Words(&[("true", Meaning::RoundedDown)])),
            on("x-ratelimit-limit-*", Says::Limit("*")),
            on("x-ratelimit-remaining-*", Says::Remaining("*")),
            on("x-ratelimit-reset-*", Says::Reset("*", Form::Untyped)),
        ],
        // GitHub's secondary limit: "wait for at least one minute", in the words of its documentation.
        body: &[at(&[Step::Key("message")], When::Failed, BodySays::Documented("secondary rate", 60))],
    },
    // The same with another spelling.
    Profile {
        name: "x-rate-limit",
        providers: &["x", "generic"],
        headers: &[
            on("x-rate-limit-limit", Says::Limit("default")),
            on("x-rate-limit-remaining", Says::Remaining("default")),
            on("x-rate-limit-reset", Says::Reset("default", Form::Untyped)),
        ],
        body: &[],
    },
    // The `unified` pair is that of subscriptions: a word for the counter, seconds since 1970 for the reset.
    Profile {
        name: "anthropic",
        providers: &["anthropic"],
        headers: &[
            on("anthropic-ratelimit-*-limit", Says::Limit("*")),
            on("anthropic-ratelimit-*-remaining", Says::Remaining("*")),
            on("anthropic-ratelimit-*-reset", Says::Reset("*", Form::Untyped)),
            on("anthropic-ratelimit-*-status", Says::EmptyIf("rejected", "*")),
        ],
        body: &[],
    },
    Profile {
        name: "mistral",
        providers: &["mistral"],
        headers: &[
            on("x-ratelimitbysize-limit-minute", Says::Limit("tokens")),
            on("x-ratelimitbysize-remaining-minute", Says::Remaining("tokens")),
            on("ratelimitbysize-limit", Says::Limit("tokens")),
            on("ratelimitbysize-remaining", Says::Remaining("tokens")),
            on("ratelimitbysize-reset", Says::Reset("tokens", Form::Untyped)),
        ],
        body: &[],
    },
    // No hint about time. Two of the reasons are about what is in flight, where a lower rate does not help.
    Profile {
        name: "stripe",
        providers: &["stripe"],
        headers: &[
            on("stripe-should-retry", Says::Words(&[("false", Meaning::NoRetry)])),
            on(
                "stripe-rate-limited-reason",
                Says::Words(&[
                    ("global-rate", Meaning::Global),
                    ("global-concurrency", Meaning::InFlight),
                    ("endpoint-concurrency", Meaning::InFlight),
                ]),
            ),
        ],
        body: &[],
    },
    Profile {
        name: "shopify",
        providers: &["shopify"],
        headers: &[on("x-shopify-shop-api-call-limit", Says::UsedOfLimit("requests"))],
        body: &[at(&[Step::Key("extensions"), Step::Key("cost")], When::Always, BodySays::Cost)],
    },
    // gRPC proposal A6, and google.rpc.RetryInfo as a trailer and in JSON.
    Profile {
        name: "google",
        providers: &["google", "grpc"],
        headers: &[
            on("grpc-retry-pushback-ms", Says::Pushback),
            on("grpc-status-details-bin", Says::StatusDetails),
        ],
        body: &[at(
            &[
                Step::Key("error"),
                Step::Key("details"),
                Step::EachWhere("@type", "google.rpc.RetryInfo"),
                Step::Key("retryDelay"),
            ],
            When::Always,
            BodySays::Wait(Form::ProtoDuration),
        )],
    },
    Profile {
        name: "aws",
        providers: &["aws"],
        headers: &[on("x-amz-retry-after", Says::Wait(Form::WholeMilliseconds))],
        body: &[],
    },
    Profile {
        name: "azure",
        providers: &["azure-cosmos", "azure-openai"],
        headers: &[on("x-ms-retry-after-ms", Says::Wait(Form::Milliseconds))],
        body: &[],
    },
    Profile {
        name: "traefik",
        providers: &["traefik"],
        headers: &[on("x-retry-in", Says::Wait(Form::GoDuration))],
        body: &[],
    },
    // draft-ietf-httpapi-ratelimit-headers, all editions: 00 to 06 with three headers, 07 with a dictionary, then lists.
    Profile {
        name: "ietf",
        providers: &["ietf", "cloudflare", "huggingface", "sharepoint", "gitlab", "kong"],
        headers: &[
            on("ratelimit", Says::RateLimit),
            on("ratelimit-policy", Says::RateLimitPolicy),
            on("ratelimit-limit", Says::Limit("default")),
            on("ratelimit-remaining", Says::Remaining("default")),
            on("ratelimit-reset", Says::Reset("default", Form::Untyped)),
        ],
        body: &[],
    },
    // JSON-RPC errors and tool results of MCP. There is no standard: these are the names that are in use.
    Profile {
        name: "mcp",
        providers: &["mcp"],
        headers: &[],
        body: &[
            at(
                &[Step::Key("error"), Step::Key("data"), Step::Key("retryAfterMs")],
                When::Always,
                BodySays::Wait(Form::Milliseconds),
            ),
            at(
                &[Step::Key("error"), Step::Key("data"), Step::Key("retryAfterSeconds")],
                When::Always,
                BodySays::Wait(Form::Seconds),
            ),
            at(
                &[Step::Key("error"), Step::Key("data"), Step::Key("retryAfter")],
                When::Always,
                BodySays::Wait(Form::RetryAfter),
            ),
            at(
                &[Step::Key("error"), Step::Key("data"), Step::Key("retry_after")],
                When::Always,
                BodySays::Wait(Form::RetryAfter),
            ),
            at(
                &[Step::Key("result"), Step::Key("_meta"), Step::KeyEnding("/retryAfterMs")],
                When::ToolFailed,
                BodySays::Wait(Form::Milliseconds),
            ),
            at(
                &[
                    Step::Key("result"),
                    Step::Key("_meta"),
                    Step::KeyEnding("/rateLimit"),
                    Step::Key("retryAfterMs"),
                ],
                When::ToolFailed,
                BodySays::Wait(Form::Milliseconds),
            ),
        ],
    },
];

/// What comes before a time in a sentence: Gemini, OpenAI and Groq, Azure OpenAI, and many. In lower case.
pub(super) const PHRASES: &[&str] = &["retry in ", "try again in ", "retry after ", "please wait "];

/// Units as sentences write them after a number, longer ones before those that they begin with, in nanoseconds.
pub(super) const WORD_UNITS: &[(&str, u64)] = &[
    ("millisecond", 1_000_000),
    ("second", 1_000_000_000),
    ("sec", 1_000_000_000),
    ("minute", 60_000_000_000),
    ("hour", 3_600_000_000_000),
    ("ms", 1_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
];
