//! What holds for every input of the codec, whatever its bytes and however they are cut.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_server::resp::codec::request::{ARGS_MAX, Args, ProtocolError, REQUEST_MAX, read, write};

type Requests = Vec<Vec<Vec<u8>>>;

/// All requests of an input, what is left of it, and the error that ended it.
fn read_all(input: &[u8]) -> (Requests, usize, Option<ProtocolError>) {
    let mut args = Args::new();
    let (mut requests, mut at) = (Vec::new(), 0);
    loop {
        match read(&input[at..], &mut args) {
            Ok(Some(used)) => {
                assert!(used > 0 && used <= REQUEST_MAX);
                assert!(args.get().len() <= ARGS_MAX);
                requests.push(args.get().iter().map(|arg| arg.to_vec()).collect());
                at += used;
            }
            Ok(None) => {
                assert!(input.len() - at < REQUEST_MAX, "what is waited for has a bound");
                return (requests, at, None);
            }
            Err(error) => return (requests, at, Some(error)),
        }
    }
}

/// The same as it comes in pieces.
fn read_in_pieces(input: &[u8], cuts: &[usize]) -> (Requests, usize, Option<ProtocolError>) {
    let (mut all, mut at) = (Vec::new(), 0);
    let ends = cuts.iter().map(|cut| cut % (input.len() + 1)).chain([input.len()]);
    let mut ends: Vec<usize> = ends.collect();
    ends.sort_unstable();
    for end in ends {
        let (requests, used, error) = read_all(&input[at.min(end)..end]);
        all.extend(requests);
        at = at.min(end) + used;
        if error.is_some() {
            return (all, at, error);
        }
    }
    (all, at, None)
}

/// Bytes that look like requests, more or less.
fn inputs() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        4 => Just(b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n".to_vec()),
        4 => vec(vec(any::<u8>(), 0..20), 0..6).prop_map(|args| {
            let mut out = Vec::new();
            write(&args, &mut out);
            out
        }),
        2 => prop::sample::select(vec!["*", "$", "\r", "\n", "\r\n", "-1\r\n", "0\r\n", "3\r\n", "99999999999", "PING x\n", " "])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
        1 => (0..20_000_usize).prop_map(|length| format!("*1\r\n${length}\r\n").into_bytes()),
        1 => (0..20_000_usize).prop_map(|length| vec![b'a'; length]),
    ];
    vec(token, 0..8).prop_map(|tokens| tokens.concat())
}

proptest! {
    #[test]
    fn what_a_client_writes_is_what_is_read(args in vec(vec(any::<u8>(), 0..200), 0..ARGS_MAX)) {
        let mut input = Vec::new();
        write(&args, &mut input);
        let (requests, used, error) = read_all(&input);
        prop_assert_eq!((requests, used, error), (vec![args], input.len(), None));
    }

    #[test]
    fn any_bytes_are_read_alike_in_pieces_and_whole(input in inputs(), cuts in vec(any::<usize>(), 0..5)) {
        prop_assert_eq!(read_in_pieces(&input, &cuts), read_all(&input));
    }

    #[test]
    fn any_bytes_end_in_requests_or_an_error(input in vec(any::<u8>(), 0..300)) {
        read_all(&input);
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
