//! What messages are to the limits.

use super::*;

fn call(line: &str) -> Asked {
    match message(line.as_bytes(), &Charges::default()) {
        Message::Call(asked) => asked,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn a_call_is_known_by_its_head() {
    let asked = call(
        r#"{"params":{"name":"a\"b","arguments":{"method":"x"},"_meta":{"progressToken":7}},"id":"q","method":"tools\/call","jsonrpc":"2.0"}"#,
    );
    assert_eq!((&*asked.subject.tool, &*asked.raw_id), ("a\"b", "\"q\""));
    assert_eq!(asked.progress_token.as_deref(), Some("7"));
    assert!(!asked.modern && asked.cost == 1);
    let asked = call(
        r#"{"id":1,"method":"tools/call","params":{"name":"t","requestState":"s","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
    );
    assert!(asked.modern && asked.cost == 0, "it was charged before");
}

#[test]
fn everything_else_is_let_alone() {
    for line in [
        r#"{"id":1,"method":"initialize","params":{"name":"tools/call"}}"#,
        r#"{"id":1,"method":"tools/list"}"#,
        r#"{"method":"tools/call","params":{"name":"t"}}"#,
        r#"{"id":null,"method":"tools/call","params":{"name":"t"}}"#,
        r#"{"id":1,"method":"tools/call","params":{}}"#,
        r#"{"id":1,"method":"resources/read","params":{"uri":"x"}}"#,
        r#"{"id":1,"result":{}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"t"}"#,
        r#"[{"id":1,"method":"ping"}]"#,
        "\n",
        "\u{feff}{}",
        r#"{"id":1,"method":"ping","params":{"name":1,"name":2}}"#,
        r#"{"id":1,"id":2,"method":"ping"}"#,
        r#"{"id":1,"method":"ping"}{"id":2,"method":"ping"}"#,
    ] {
        assert_eq!(message(line.as_bytes(), &Charges::default()), Message::Other, "{line}");
    }
    let charges = Charges::default();
    let batch = br#" [{"id":1,"method":"tools/call","params":{"name":"t"}}]"#;
    assert_eq!(message(batch, &charges), Message::Batch);
}

#[test]
fn no_spelling_that_a_server_may_understand_passes_by() {
    let plain = call(r#"{"id":1,"method":"tools/call","params":{"name":"t","arguments":{}}}"#);
    let wide = r#"{"id":1,"method":"tools/call","params":{"name":"t"}}"#;
    let wide: Vec<u8> = wide.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for line in [
        &wide[..],
        b"\xef\xbb\xbf{\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"t\"}}",
        b"{\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"t\",\"arguments\":\"\xff\"}}",
        br#"{"id":1,"method":"tools/call","params":{"name":"t","arguments":{"x":[NaN,-Infinity]}}}"#,
        br#"{"id":1,"\ud800":0,"method":"tools/call","params":{"name":"t","arguments":{"\udfff":0}}}"#,
        br#"{"ID":1,"Method":"tools/call","param\u017f":{"NAME":"t"}}"#,
        br#"{"id":1,"method":"tools/call","params":{"name":"t","_meta":5}}"#,
        br#"{"id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":{}}}}"#,
        br#"{"id":1,"method":"tools/call","params":{"name":"t","requestState":null}}"#,
    ] {
        assert_eq!(
            message(line, &Charges::default()),
            Message::Call(plain.clone()),
            "{}",
            line.escape_ascii()
        );
    }
}

#[test]
fn what_servers_may_read_in_different_ways_is_unclear() {
    for (line, id) in [
        (r#"{"id":1,"method":"ping","method":"tools/call","params":{"name":"t"}}"#, Some("1")),
        (r#"{"id":1,"method":"tools/call","METHOD":"ping","params":{"name":"t"}}"#, Some("1")),
        (r#"{"id":1,"id":2,"method":"tools/call","params":{"name":"t"}}"#, None),
        (r#"{"id":1,"method":"tools/call","params":{"name":"t"},"params":{"name":"u"}}"#, Some("1")),
        (r#"{"id":1,"method":"tools/call","params":{"name":"cheap","name":"dear"}}"#, Some("1")),
        (r#"{"id":1,"method":"tools/call","params":{"name":"t"}} {"id":2,"method":"ping"}"#, None),
        (r#"{"id":1,"method":"tools/call","params":{"name":"t"}} and so on"#, None),
        (r#"{"id":1,"method":"ping"}[{"id":2,"method":"tools/call"}]"#, None),
    ] {
        let expected = Message::Unclear(id.map(Into::into));
        assert_eq!(message(line.as_bytes(), &Charges::default()), expected, "{line}");
    }
    let long = "x".repeat(LABEL_MAX);
    let of = |id: &str, token: &str| {
        let line = format!(
            r#"{{"id":{id},"method":"tools/call","params":{{"name":"t","_meta":{{"progressToken":{token}}}}}}}"#
        );
        message(line.as_bytes(), &Charges::default())
    };
    assert_eq!(of(&format!("\"{long}\""), "1"), Message::Unclear(None));
    let named = format!(r#"{{"id":1,"method":"tools/call","params":{{"name":"{long}x"}}}}"#);
    assert_eq!(message(named.as_bytes(), &Charges::default()), Message::Unclear(Some("1".into())));
    assert!(
        matches!(of("1", &format!("\"{long}\"")), Message::Call(asked) if asked.progress_token.is_none())
    );
}

#[test]
fn other_requests_are_charged_by_their_method_when_asked_for() {
    let line = br#"{"id":1,"method":"resources/read","params":{"uri":"file:///x"}}"#;
    assert_eq!(message(line, &Charges::default()), Message::Other);
    let charges = Charges { also: vec![Method::ReadResource], ..Charges::default() };
    let Message::Call(asked) = message(line, &charges) else { panic!("it is charged") };
    assert_eq!((asked.method, &*asked.subject.tool, asked.cost), (Method::ReadResource, "resources/read", 1));
    let prompt = br#"{"id":1,"method":"prompts/get","params":{"name":"x"}}"#;
    assert_eq!(message(prompt, &charges), Message::Other);
}

#[test]
fn ids_are_told_apart_by_kind_and_not_by_spelling() {
    let cancelled = |id: &str| {
        message(
            format!(r#"{{"method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#).as_bytes(),
            &Charges::default(),
        )
    };
    let answer =
        |id: &str| Message::Cancelled(answered(format!(r#"{{"id":{id},"result":1}}"#).as_bytes()).remove(0));
    assert_eq!(cancelled("1"), answer("1"));
    assert_ne!(cancelled("1"), answer("\"1\""));
    assert_eq!(cancelled("\"\u{e9}\""), answer("\"\\u00e9\""));
    assert_eq!(cancelled("1"), answer("1.0"));
    assert_eq!(cancelled("-0.0"), answer("0"));
    assert_eq!(cancelled("\"\\ud800\""), answer("\"\\ud800\""));
    assert_ne!(cancelled("9007199254740993"), answer("9007199254740992"));
    assert_eq!(answered(br#"{"id":1,"method":"sampling/createMessage"}"#), []);
    assert_eq!(answered(br#"{"id":null,"error":{}}"#), []);
    let both = answered(br#"[{"id":1,"result":NaN},{"id":2,"error":{}},{"id":3,"method":"ping"}]"#);
    assert_eq!(both, ["1", "2"].map(|id| Id::Number(id.into())));
}

#[test]
fn a_line_is_read_whole_up_to_its_bound() {
    let mut line = Vec::new();
    let mut text = &b"12345\n1234"[..];
    assert!(read(&mut text, &mut line, 5).unwrap());
    assert_eq!(line, b"12345\n");
    assert!(read(&mut text, &mut line, 5).unwrap());
    assert_eq!(line, b"1234");
    assert!(!read(&mut text, &mut line, 5).unwrap());
    let error = read(&mut &b"123456\n"[..], &mut line, 5).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
}
