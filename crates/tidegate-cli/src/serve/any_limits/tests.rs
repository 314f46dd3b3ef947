//! Files that are made at random of what files say, right and wrong.

use proptest::collection::vec;
use proptest::prelude::*;

use super::check;

/// A text as TOML has it, among them what has to be escaped.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z][a-z_*.=:, ']{0,6}",
        1 => any::<String>(),
    ]
    .prop_map(|text| super::quoted(&text))
}

fn quotas() -> impl Strategy<Value = String> {
    prop_oneof![
        (1..1000_u32, "(s|min|h|day|ms)").prop_map(|(count, unit)| format!("\"{count}/{unit}\"")),
        (1..u64::MAX, 1..100_u32, any::<u64>())
            .prop_map(|(count, per, burst)| format!("\"{count} per {per}s burst {burst}\"")),
        Just("\"0.1/s burst 3\"".to_owned()),
        "[0-9/a-z. ]{0,8}".prop_map(|text| format!("\"{text}\"")),
    ]
}

/// A line of a limit.
fn lines() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "mode = \"shadow\"",
        "mode = \"enforce\"",
        "key = \"client-ip\"",
        "key = [\"path\", \"header:x\"]",
        "key = \"none\"",
        "algorithm = \"sliding-log\"",
        "algorithm = \"leaky-bucket\"",
        "algorithm = \"none\"",
        "algorithm = \"fixed-window\"",
        "queue = { max = 3, max_wait = \"2s\" }",
        "queue = { max = 9223372036854775807 }",
        "tools = [\"web_*\"]",
        "descriptors = [\"shop: path=/login, user=*\"]",
        "descriptors = [\"a: b='c, *'\"]",
        "max_in_flight = 8",
        "x = 1",
        "[",
        "#",
    ]);
    prop_oneof![
        4 => words.prop_map(str::to_owned),
        1 => texts().prop_map(|text| format!("key = {text}")),
        1 => texts().prop_map(|text| format!("tools = [{text}]")),
        1 => texts().prop_map(|text| format!("descriptors = [{text}]")),
        1 => ("[a-z*]{1,3}", any::<String>()).prop_map(|(key, value)| format!("descriptors = [{}]", super::quoted(&format!("{key}: b='{value}'")))),
        1 => any::<i64>().prop_map(|max| format!("queue = {{ max = {max} }}")),
        1 => any::<i64>().prop_map(|max| format!("max_in_flight = {max}")),
        2 => (texts(), quotas()).prop_map(|(key, quota)| format!("[[limit.override]]\nkey = {key}\nquota = {quota}")),
    ]
}

fn files() -> impl Strategy<Value = String> {
    let limit = (texts(), quotas(), vec(lines(), 0..4)).prop_map(|(name, quota, lines)| {
        format!("[[limit]]\nname = {name}\nquota = {quota}\n{}\n", lines.join("\n"))
    });
    let tool = (texts(), prop_oneof![Just("5".to_owned()), Just("\"args.a.b\"".to_owned()), texts()])
        .prop_map(|(name, cost)| format!("[[tool]]\nname = {name}\ncost = {cost}\n"));
    (vec(limit, 0..4), vec(tool, 0..2)).prop_map(|(limits, tools)| limits.concat() + &tools.concat())
}

proptest! {
    #[test]
    fn a_file_is_refused_with_advice_or_means_what_it_is_printed_as(text in files()) {
        check(&text);
    }

    #[test]
    fn any_text_is_refused_with_advice(text in any::<String>(), at: prop::sample::Index, file in files()) {
        let mut text = text;
        check(&text);
        // The same in the middle of a file.
        let places: Vec<usize> = file.char_indices().map(|(place, _)| place).collect();
        let place = if places.is_empty() { 0 } else { *at.get(&places) };
        text = format!("{}{text}{}", &file[..place], &file[place..]);
        check(&text);
    }
}
