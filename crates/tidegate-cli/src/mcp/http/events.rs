//! Event streams (`text/event-stream`), as far as MCP uses them: each event has a message in its data.

/// How much of the data of one event is kept; a longer one is no error that says how long to wait.
const DATA_MAX: usize = 256 * 1024;

/// Finds the data of events in bytes that come in pieces.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    is_too_long: bool,
    after_return: bool,
}

impl Events {
    /// Takes the next bytes, and tells the data of each event that ends in them.
    pub(super) fn take(&mut self, bytes: &[u8], mut tell: impl FnMut(&[u8])) {
        for byte in bytes {
            let is_end = match byte {
                // The second half of a line end.
                b'\n' if self.after_return => false,
                b'\n' | b'\r' => true,
                _ => {
                    self.push(*byte);
                    false
                }
            };
            self.after_return = *byte == b'\r';
            if is_end {
                self.end_of_line(&mut tell);
            }
        }
    }

    fn push(&mut self, byte: u8) {
        if self.line.len() < DATA_MAX {
            self.line.push(byte);
        } else {
            self.is_too_long = true;
        }
    }

    fn end_of_line(&mut self, tell: &mut impl FnMut(&[u8])) {
        if self.line.is_empty() {
            if !self.data.is_empty() && !self.is_too_long {
                tell(&self.data);
            }
            self.data.clear();
            self.is_too_long = false;
            return;
        }
        if let Some(data) = self.line.strip_prefix(b"data:") {
            if self.data.len() + data.len() > DATA_MAX {
                self.is_too_long = true;
            } else {
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
                self.data.push(b'\n');
            }
        }
        self.line.clear();
    }
}

/// A message as an event. It may have line ends between its tokens.
pub(super) fn event(message: &[u8]) -> Vec<u8> {
    let mut event = b"event: message\n".to_vec();
    for line in message.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty()) {
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(line);
        event.push(b'\n');
    }
    event.push(b'\n');
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pieces: &[&[u8]]) -> Vec<String> {
        let (mut events, mut told) = (Events::default(), Vec::new());
        for piece in pieces {
            events.take(piece, |data| told.push(String::from_utf8(data.to_vec()).unwrap()));
        }
        told
    }

    #[test]
    fn events_are_found_whatever_the_pieces_and_line_ends() {
        let stream =
            b": hello\n\nid: 1\ndata: a\ndata:b\n\ndata: c\r\n\r\nevent: x\rdata: d\r\rdata: cut off";
        assert_eq!(told(&[stream]), ["a\nb\n", "c\n", "d\n"]);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(told(&bytes), told(&[stream]));
    }

    #[test]
    fn what_is_too_long_is_passed_over_and_not_kept() {
        let mut stream = b"data: ".to_vec();
        stream.resize(2 * DATA_MAX, b'x');
        stream.extend_from_slice(b"\n\ndata: y\n\n");
        assert_eq!(told(&[&stream]), ["y\n"]);
        let mut events = Events::default();
        events.take(&vec![b'x'; 10 * DATA_MAX], |_| {});
        assert!(events.line.len() <= DATA_MAX);
        let line = [b"data: ".as_slice(), &vec![b'x'; DATA_MAX / 2], b"\n"].concat();
        let many = [line.repeat(9), b"\ndata: z\n\n".to_vec()].concat();
        assert_eq!(told(&[&many]), ["z\n"]);
    }

    #[test]
    fn a_message_of_several_lines_is_one_event() {
        let text = event(b"{\n \"a\": 1\r\n}\n");
        assert_eq!(text, b"event: message\ndata: {\ndata:  \"a\": 1\ndata: }\n\n");
        assert_eq!(told(&[&text]), ["{\n \"a\": 1\n}\n"]);
    }
}
