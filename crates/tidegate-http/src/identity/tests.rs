use super::*;
use proptest::prelude::*;

fn identity() -> ClientIdentity {
    ClientIdentity::new().trusted_proxies("10.0.0.0/8".parse().unwrap())
}

fn headers(name: &HeaderName, lines: &[&[u8]]) -> HeaderMap {
    lines.iter().map(|line| (name.clone(), HeaderValue::from_bytes(line).unwrap())).collect()
}

#[track_caller]
fn client(identity: &ClientIdentity, peer: &str, name: &HeaderName, lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
    let client = identity.client(peer.parse().unwrap(), &headers(name, &lines));
    identity.network(client).to_string()
}

#[test]
fn the_right_most_address_that_is_not_trusted_is_the_client() {
    for (peer, lines, expected) in [
        ("203.0.113.9", &["1.2.3.4"][..], "203.0.113.9"),
        ("10.0.0.5", &["1.2.3.4, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", &["1.2.3.4, 203.0.113.9, 10.1.1.1"], "203.0.113.9"),
        ("10.0.0.5", &["evil, 10.1.1.1"], "10.1.1.1"),
        ("10.0.0.5", &[], "10.0.0.5"),
        // All lines are one list, in their order.
        ("10.0.0.5", &["1.2.3.4, 203.0.113.9", "10.1.1.1"], "203.0.113.9"),
        ("10.0.0.5", &["203.0.113.9", "1.2.3.4"], "1.2.3.4"),
        // All are trusted: the left-most.
        ("10.0.0.5", &["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        // What is no address ends the walk.
        ("10.0.0.5", &["1.2.3.4, "], "10.0.0.5"),
        ("10.0.0.5", &[""], "10.0.0.5"),
        ("10.0.0.5", &["1.2.3.4, unknown, 10.1.1.1"], "10.1.1.1"),
        ("10.0.0.5", &["1.2.3.4, _obf"], "10.0.0.5"),
        ("10.0.0.5", &["1.2.3.4,,10.1.1.1"], "10.1.1.1"),
        ("10.0.0.5", &["1.2.3.4, 010.0.0.1"], "10.0.0.5"),
        ("10.0.0.5", &["1.2.3.4 5.6.7.8"], "10.0.0.5"),
        // Forms of one address.
        ("::ffff:10.0.0.5", &["203.0.113.9:5678"], "203.0.113.9"),
        ("10.0.0.5", &["::ffff:203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", &["[::ffff:203.0.113.9]:80"], "203.0.113.9"),
        ("10.0.0.5", &["[2001:db8:1:2:3:4:5:6]:443"], "2001:db8:1:2::/64"),
        ("10.0.0.5", &["[2001:db8:1:2:3:4:5:6]"], "2001:db8:1:2::/64"),
        ("10.0.0.5", &["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::/64"),
        ("10.0.0.5", &["fe80:1:2:3::1%eth0"], "fe80:1:2:3::/64"),
        ("10.0.0.5", &["\"[2001:db8::1]:80\""], "2001:db8::/64"),
        // Almost addresses.
        ("10.0.0.5", &["203.0.113.9:"], "10.0.0.5"),
        ("10.0.0.5", &["203.0.113.9:http"], "10.0.0.5"),
        ("10.0.0.5", &["[2001:db8::1"], "10.0.0.5"),
        ("10.0.0.5", &["[2001:db8::1]80"], "10.0.0.5"),
        ("10.0.0.5", &["[203.0.113.9]:80"], "10.0.0.5"),
        ("10.0.0.5", &["203.0.113.9%eth0"], "10.0.0.5"),
    ] {
        assert_eq!(client(&identity(), peer, &X_FORWARDED_FOR, lines), expected, "{peer} {lines:?}");
    }
}

#[test]
fn forwarded_is_read_when_it_is_the_field() {
    let identity = identity().field(ForwardingField::Forwarded);
    for (lines, expected) in [
        (&["for=\"[2001:db8:1:2:3:4:5:6]:80\""][..], "2001:db8:1:2::/64"),
        (&["for=1.2.3.4, for=203.0.113.9;proto=https;by=10.0.0.5"], "203.0.113.9"),
        (&["For = \"203.0.113.9:80\" ; host=\"a,b;c\\\"d\"", "for=10.1.1.1"], "203.0.113.9"),
        (&["for=203.0.113.9;host=\"a\\\\\", for=10.1.1.1"], "203.0.113.9"),
        (&["for=1.2.3.4, for=unknown"], "10.0.0.5"),
        (&["for=1.2.3.4, proto=https"], "10.0.0.5"),
        (&["for=1.2.3.4, for=_hidden, for=10.1.1.1"], "10.1.1.1"),
        (&["for=1.2.3.4;for=203.0.113.9"], "10.0.0.5"),
        (&["for=\"203.0.113.9:_p1\""], "203.0.113.9"),
        // A quote that the client left open does not swallow what the proxy wrote.
        (&["for=\"1.2.3.4, for=203.0.113.9"], "203.0.113.9"),
        (&["for=\"1.2.3.4", "for=203.0.113.9"], "203.0.113.9"),
        (&["for=\"1.2.3.4, for=10.1.1.1"], "10.1.1.1"),
    ] {
        assert_eq!(client(&identity, "10.0.0.5", &FORWARDED, lines), expected, "{lines:?}");
    }
    // The other field is not looked at, and neither is this one when the peer is not trusted.
    assert_eq!(client(&identity, "10.0.0.5", &X_FORWARDED_FOR, &["203.0.113.9"]), "10.0.0.5");
    assert_eq!(client(&identity, "192.0.2.1", &FORWARDED, &["for=203.0.113.9"]), "192.0.2.1");
}

#[test]
fn a_number_of_trusted_hops_counts_from_the_right() {
    let list = &["1.2.3.4, 203.0.113.9, 198.51.100.1"][..];
    for (hops, lines, expected) in [
        (0, list, "192.0.2.1"),
        (1, list, "198.51.100.1"),
        (2, list, "203.0.113.9"),
        (2, &["203.0.113.9"], "203.0.113.9"),
        (2, &["1.2.3.4, x, 198.51.100.1"], "198.51.100.1"),
        (2, &[], "192.0.2.1"),
    ] {
        let identity = ClientIdentity::new().trusted_hops(hops);
        assert_eq!(client(&identity, "192.0.2.1", &X_FORWARDED_FOR, lines), expected, "{hops} {lines:?}");
    }
}

#[test]
fn a_field_with_one_address_counts_when_a_proxy_sent_it_once() {
    let name = HeaderName::from_static("cf-connecting-ip");
    let identity = identity().field(ForwardingField::Single(name.clone()));
    assert_eq!(client(&identity, "10.0.0.5", &name, &["203.0.113.9"]), "203.0.113.9");
    for (peer, lines) in [
        ("10.0.0.5", &["203.0.113.9", "1.2.3.4"][..]),
        ("10.0.0.5", &["203.0.113.9, 1.2.3.4"]),
        ("10.0.0.5", &["unknown"]),
        ("192.0.2.1", &["203.0.113.9"]),
    ] {
        assert_eq!(client(&identity, peer, &name, lines), peer, "{lines:?}");
    }
}

#[test]
fn the_width_of_a_client_can_be_chosen() {
    let address = "2001:db8:1234:5678::1".parse().unwrap();
    let network = |bits| ClientIdentity::new().ipv6_prefix(bits).network(address).to_string();
    assert_eq!(network(56), "2001:db8:1234:5600::/56");
    assert_eq!(network(48), "2001:db8:1234::/48");
    assert_eq!(network(200), "2001:db8:1234:5678::1");
    let four = ClientIdentity::new().ipv4_prefix(24).network("::ffff:192.0.2.77".parse().unwrap());
    assert_eq!(four.to_string(), "192.0.2.0/24");
}

/// What a field value may hold: anything but control characters.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select(&b"\"\\,;=[]:.%for0129 \t"[..]),
        1 => 32..=126_u8,
        1 => 128..=255_u8,
    ];
    prop::collection::vec(byte, 0..60)
}

proptest! {
    #[test]
    fn any_bytes_give_a_client(line in line(), hops in 0..4_usize, peer: IpAddr) {
        for field in [ForwardingField::XForwardedFor, ForwardingField::Forwarded, ForwardingField::Single(FORWARDED)] {
            for name in [&X_FORWARDED_FOR, &FORWARDED] {
                let headers = headers(name, &[&line, &line]);
                let _ = ClientIdentity::new().trusted_hops(hops).field(field.clone()).client(peer, &headers);
                // Who is not trusted is who connected, whatever he sent.
                let strict = ClientIdentity::new().field(field.clone());
                prop_assert_eq!(strict.client(peer, &headers), peer.to_canonical());
            }
        }
    }

    #[test]
    fn what_the_client_sent_does_not_change_who_it_is(sent in line(), same_line: bool, more in 0..3_usize) {
        let written = |name: &HeaderName, form: fn(&str) -> String| {
            let mut list = form("203.0.113.9");
            for hop in 0..more {
                list = format!("{list}, {}", form(&format!("10.0.0.{hop}")));
            }
            if same_line {
                headers(name, &[&[&sent[..], b", ", list.as_bytes()].concat()])
            } else {
                headers(name, &[&sent, list.as_bytes()])
            }
        };
        let (proxy, real) = ("10.0.0.5".parse().unwrap(), "203.0.113.9".parse::<IpAddr>().unwrap());
        let list = written(&X_FORWARDED_FOR, str::to_owned);
        prop_assert_eq!(identity().client(proxy, &list), real);
        let list = written(&FORWARDED, |address| format!("by=10.0.0.5;for=\"{address}:80\";host=\"a, b\""));
        prop_assert_eq!(identity().field(ForwardingField::Forwarded).client(proxy, &list), real);
    }
}
