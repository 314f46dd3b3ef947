//! The bodies of rejections: `application/problem+json` (RFC 9457), with the types of the RateLimit draft.
//!
//! ```
//! use tidegate_http::problem::{Problem, ProblemType};
//!
//! let problem = Problem {
//!     kind: ProblemType::QuotaExceeded,
//!     detail: "rejected by `per-client`: retry after 0.100 s",
//!     violated: &["per-client"],
//! };
//! assert_eq!(
//!     problem.to_json(),
//!     concat!(
//!         r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
//!         r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"#,
//!         r#""detail":"rejected by `per-client`: retry after 0.100 s","violated-policies":["per-client"]}"#,
//!     ),
//! );
//! ```

use std::fmt::Write as _;

use http::{HeaderValue, StatusCode};

/// The media type of the bodies.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// What a rejection says in its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem<'a> {
    /// What kind of problem it is, and with it the status.
    pub kind: ProblemType,
    /// What happened to this request, for people.
    pub detail: &'a str,
    /// The names of the limits that refused.
    pub violated: &'a [&'a str],
}

/// The kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemType {
    /// `quota-exceeded`, 429: this client has sent too many.
    QuotaExceeded,
    /// `temporary-reduced-capacity`, 503: the server as a whole is full.
    TemporaryReducedCapacity,
    /// No type of its own (`about:blank`), 400: the cost of the request is above the capacity, so no wait can help.
    NeverAllowed,
}

impl ProblemType {
    /// The status of the response.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::TemporaryReducedCapacity => StatusCode::SERVICE_UNAVAILABLE,
            Self::NeverAllowed => StatusCode::BAD_REQUEST,
        }
    }

    /// The address that names the type.
    #[must_use]
    pub const fn uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::TemporaryReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::NeverAllowed => "about:blank",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Request cannot be satisfied as assigned quota has been exceeded",
            Self::TemporaryReducedCapacity => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
            // What `about:blank` asks for: the name of the status.
            Self::NeverAllowed => "Bad Request",
        }
    }
}

impl Problem<'_> {
    /// The body.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = String::with_capacity(320 + self.detail.len());
        // Type and title hold nothing that needs an escape.
        let (kind, title, status) = (self.kind.uri(), self.kind.title(), self.kind.status());
        for part in [
            "{\"type\":\"",
            kind,
            "\",\"title\":\"",
            title,
            "\",\"status\":",
            status.as_str(),
            ",\"detail\":",
        ] {
            json.push_str(part);
        }
        push_string(&mut json, self.detail);
        json.push_str(",\"violated-policies\":[");
        for (index, name) in self.violated.iter().enumerate() {
            if index > 0 {
                json.push(',');
            }
            push_string(&mut json, name);
        }
        json.push_str("]}");
        json
    }
}

/// A JSON string. This is all the JSON that is written here, so it is not worth a dependency.
fn push_string(json: &mut String, text: &str) {
    json.push('"');
    let mut plain = text;
    while let Some(at) = plain.bytes().position(|byte| matches!(byte, b'"' | b'\\' | ..=0x1f)) {
        let (before, rest) = plain.split_at(at);
        json.push_str(before);
        // What was found is one byte.
        let (special, rest) = rest.split_at(1);
        match special {
            "\"" => json.push_str("\\\""),
            "\\" => json.push_str("\\\\"),
            control => {
                let _ = write!(json, "\\u{:04x}", control.as_bytes()[0]);
            }
        }
        plain = rest;
    }
    json.push_str(plain);
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_makes_json(detail: String, names in prop::collection::vec(any::<String>(), 0..3)) {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            for kind in [ProblemType::QuotaExceeded, ProblemType::TemporaryReducedCapacity, ProblemType::NeverAllowed] {
                let json = Problem { kind, detail: &detail, violated: &names }.to_json();
                let read: serde_json::Value = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(&read["detail"], &detail);
                prop_assert_eq!(&read["type"], kind.uri());
                prop_assert_eq!(&read["status"], kind.status().as_u16());
                prop_assert_eq!(&read["violated-policies"], &serde_json::json!(names));
            }
        }
    }
}
