//! Bytes that are made at random, and requests as clients send them.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Bytes that look like requests, more or less.
fn inputs() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        4 => Just(b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n".to_vec()),
        4 => vec(vec(any::<u8>(), 0..20), 0..6).prop_map(|args| {
            let mut out = Vec::new();
            write(&args, &mut out);
            out
        }),
        4 => prop::sample::select(vec![
            "CL.THROTTLE a 3 1 9\r\n", "CL.THROTTLE a 3 1 9 2\n", "CL.THROTTLE b -1 1 9\n", "cl.throttle a x 1 9\r\n",
            "TG.CHECK calls ann\r\n", "TG.CHECK all  2\n", "*3\r\n$8\r\ntg.check\r\n$3\r\nall\r\n$0\r\n\r\n", "TG.CHECK \u{e4} b\n",
            "HELLO 3\n", "HELLO 3 AUTH default secret SETNAME x\r\n", "HELLO 3 AUTH default secre\n", "AUTH secret\n", "RESET\n",
            "CLIENT GETNAME\n", "CLIENT SETNAME c\n", "COMMAND INFO a b\n", "COMMAND LIST\n", "COMMAND DOCS\n", "INFO\n", "NO\rPE\n", "QUIT\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        2 => prop::sample::select(vec!["*", "$", "\r", "\n", "\r\n", "-1\r\n", "0\r\n", "3\r\n", "99999999999", "PING x\n", " "])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
        1 => (0..20_000_usize).prop_map(|length| format!("*1\r\n${length}\r\n").into_bytes()),
        1 => (0..20_000_usize).prop_map(|length| vec![b'a'; length]),
    ];
    vec(token, 0..8).prop_map(|tokens| tokens.concat())
}

/// As each case is many calls: a part of what `PROPTEST_CASES` says, 256 when it says nothing.
fn fewer() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.div_ceil(2), ..usual }
}

proptest! {
    #![proptest_config(fewer())]

    #[test]
    fn what_a_client_writes_is_what_is_read(args in vec(vec(any::<u8>(), 0..200), 0..ARGS_MAX)) {
        let mut input = Vec::new();
        write(&args, &mut input);
        let (requests, used, error) = read_all(&input);
        prop_assert_eq!((requests, used, error), (vec![args], input.len(), None));
    }

    #[test]
    fn what_looks_like_requests_is_answered_alike_in_pieces_and_whole(
        input in inputs(),
        cuts in vec(any::<usize>(), 0..5),
        has_password: bool,
    ) {
        check(&input, &cuts, has_password);
    }

    #[test]
    fn any_bytes_end_in_answers_or_an_error(input in vec(any::<u8>(), 0..300), cut: usize) {
        check(&input, &[cut], false);
    }
}

#[test]
fn a_request_is_read_alike_wherever_it_is_cut() {
    let input = b"*5\r\n$11\r\nCL.THROTTLE\r\n$4\r\na\r\nb\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\nPING  hi\t\r\n*0\r\n*-1\r\n\n*1\r\n$0\r\n\r\n";
    let whole = read_all(input);
    let (requests, used, error) = &whole;
    assert_eq!((*used, *error), (input.len(), None));
    let words =
        |text: &str| -> Vec<Vec<u8>> { text.split(' ').map(|word| word.as_bytes().to_vec()).collect() };
    let none: Vec<Vec<u8>> = Vec::new();
    let empty_name = vec![Vec::new()];
    assert_eq!(
        *requests,
        [
            words("CL.THROTTLE a\r\nb 15 30 60"),
            words("PING hi"),
            none.clone(),
            none.clone(),
            none,
            empty_name
        ]
    );
    for cut in 0..=input.len() {
        assert_eq!(read_in_pieces(input, &[cut]), whole, "cut at {cut}");
    }
    let every_byte: Vec<usize> = (0..input.len()).collect();
    assert_eq!(read_in_pieces(input, &every_byte), whole);
}

#[test]
fn what_is_no_request_is_named() {
    use ProtocolError::*;
    let long = |count: usize| format!("*1\r\n${count}\r\n").into_bytes();
    let many = |count: usize| format!("*{count}\r\n").into_bytes();
    for (input, expected) in [
        (b"*x\r\n".to_vec(), Err(ArrayLength)),
        (b"*\r\n".to_vec(), Err(ArrayLength)),
        (b"*-2\r\n".to_vec(), Err(ArrayLength)),
        (b"*1\rx".to_vec(), Err(ArrayLength)),
        (b"*12345678901".to_vec(), Err(ArrayLength)),
        (b"*1\r\n+PING\r\n".to_vec(), Err(NoBulk)),
        (b"*1\r\n$-1\r\n".to_vec(), Err(BulkLength)),
        (b"*1\r\n$4x\r\n".to_vec(), Err(BulkLength)),
        (b"*1\r\n$4\r\nPINGPONG".to_vec(), Err(BulkEnd)),
        (many(ARGS_MAX), Ok(None)),
        (many(ARGS_MAX + 1), Err(TooManyArguments)),
        (long(REQUEST_MAX), Err(TooLarge)),
        (long(9_999_999_999), Err(TooLarge)),
        (long(REQUEST_MAX - 13), Ok(None)),
        (vec![b'a'; REQUEST_MAX - 1], Ok(None)),
        (vec![b'a'; REQUEST_MAX], Err(TooLarge)),
        (format!("{}\n", "a ".repeat(ARGS_MAX + 1)).into_bytes(), Err(TooManyArguments)),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n".to_vec(), Err(Http)),
        (b"host: localhost\r\n".to_vec(), Err(Http)),
    ] {
        let shown = String::from_utf8_lossy(&input[..input.len().min(40)]).into_owned();
        assert_eq!(read(&input, &mut Args::new()), expected, "{shown:?}");
    }
}

#[test]
fn a_request_whose_next_argument_cannot_come_any_more_is_not_waited_for() {
    // The first argument ends before the bound, and the second would begin at it or behind it.
    for first in REQUEST_MAX - 30..REQUEST_MAX {
        let mut input = format!("*2\r\n${first}\r\n{}\r\n", "a".repeat(first)).into_bytes();
        input.extend_from_slice(b"$1\r\nx\r\n");
        let cuts: Vec<usize> = (REQUEST_MAX - 20..input.len()).collect();
        check(&input, &cuts, false);
        let expected =
            if input.len() > REQUEST_MAX { Err(ProtocolError::TooLarge) } else { Ok(Some(input.len())) };
        assert_eq!(read(&input, &mut Args::new()), expected, "{first}");
    }
}
