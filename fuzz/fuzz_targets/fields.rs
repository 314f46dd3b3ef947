//! Any bytes as the fields of a request or a response: no panic, nobody forges another client, and what is read can be
//! written and read again.
//!
//! Run as `hint.rs` says: `cargo +nightly fuzz run fields`. An input begins with a byte: which field names the client, and
//! how. The rest is the lines of that field, and of `RateLimit` and `RateLimit-Policy`.

#![no_main]

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tidegate_http::fields::{parse_policy, parse_state, write_policy, write_state};
use tidegate_http::identity::{ClientIdentity, ForwardingField, TrustedProxies};

fuzz_target!(|data: &[u8]| {
    let [which, rest @ ..] = data else { return };
    let lines: Vec<HeaderValue> =
        rest.split(|byte| *byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok()).collect();

    let proxies: TrustedProxies = "10.0.0.0/8 fd00::/8".parse().expect("networks");
    let (name, field, forged) = match which & 1 {
        0 => ("x-forwarded-for", ForwardingField::XForwardedFor, "192.0.2.66"),
        _ => ("forwarded", ForwardingField::Forwarded, "for=192.0.2.66"),
    };
    let name = HeaderName::from_static(name);
    let headers: HeaderMap = lines.iter().map(|line| (name.clone(), line.clone())).collect();
    let identity = ClientIdentity::new().trusted_proxies(proxies.clone()).field(field);
    let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let (stranger, proxy) = (address("203.0.113.9"), address("10.0.0.5"));
    assert_eq!(identity.client(stranger, &headers), stranger, "a stranger is believed nothing");
    let client = identity.client(proxy, &headers);
    if !proxies.contain(client) {
        // What a client writes to the left of what proxies have written changes nothing.
        let lines = std::iter::once(HeaderValue::from_static(forged)).chain(lines.iter().cloned());
        let more: HeaderMap = lines.map(|line| (name.clone(), line)).collect();
        assert_eq!(identity.client(proxy, &more), client);
    }
    let _ = ClientIdentity::new().trusted_hops(usize::from(which >> 1)).client(proxy, &headers);

    if let Some(items) = parse_state(&lines) {
        if let Ok(line) = write_state(&items) {
            assert_eq!(parse_state([&line]).unwrap_or_default(), items);
        }
    }
    if let Some(items) = parse_policy(&lines) {
        if let Ok(line) = write_policy(&items) {
            assert_eq!(parse_policy([&line]).unwrap_or_default(), items);
        }
    }
});
