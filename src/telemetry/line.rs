//! Each event of the log is one line.

use std::borrow::Cow;
use std::io;

use tracing_subscriber::fmt::MakeWriter;

/// Where the log goes.
pub(super) struct Stderr;

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Stderr;

    fn make_writer(&'a self) -> Stderr {
        Stderr
    }
}

/// Each event is one line, whatever its text holds: words of a Pod or a server forge no other.
impl io::Write for Stderr {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::Write::write_all(&mut io::stderr(), &one_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::Write::flush(&mut io::stderr())
    }
}

/// A formatted event whose only control characters are the end of its line, and ESC of colours: the formatter lets
/// none through that a text holds.
fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = match event.split_last() {
        Some((b'\n', text)) => (text, &b"\n"[..]),
        _ => (event, &b""[..]),
    };
    let is_forged = |it: &u8| it.is_ascii_control() && *it != 0x1b;
    if !text.iter().any(is_forged) {
        return Cow::Borrowed(event);
    }
    let mut line = Vec::with_capacity(event.len() + 16);
    for byte in text {
        if is_forged(byte) {
            line.extend(byte.escape_ascii());
        } else {
            line.push(*byte);
        }
    }
    line.extend_from_slice(end);
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_forges_no_line_of_the_log() {
        let line = |text: &str| String::from_utf8(one_line(text.as_bytes()).into_owned()).unwrap();
        assert_eq!(line("<6>all is well\n"), "<6>all is well\n");
        let coloured = "\u{1b}[32mINFO\u{1b}[0m Größe\n";
        assert_eq!(line(coloured), coloured);
        assert_eq!(
            line("a\n<3>forged\r\0\u{7}\n"),
            "a\\n<3>forged\\r\\x00\\x07\n"
        );
        assert_eq!(line(""), "");
    }
}
