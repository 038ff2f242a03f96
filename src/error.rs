//! Errors in words.

/// An error with all its sources.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(it) = source {
        text.push_str(": ");
        text.push_str(&it.to_string());
        source = it.source();
    }
    text
}

/// A text as it may stand in a message: on one line, without control characters, at most so many characters of it.
pub fn shown(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for (count, it) in text.chars().enumerate() {
        if count == most {
            shown.push_str("...");
            break;
        }
        if it.is_control() {
            shown.extend(it.escape_default());
        } else {
            shown.push(it);
        }
    }
    shown
}

/// A word as a shell reads it back. `'` is the only character that ends a quoted one.
pub fn shell_word(text: &str) -> String {
    let plain = |it: u8| it.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&it);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a real shell reads it")]
    fn a_shell_reads_a_word_back() {
        for text in [
            "/media/pi/USB DISK",
            "/mnt/Sicherung ä",
            "it's",
            "$(id)",
            "",
            "a\nb",
        ] {
            let mut shell = std::process::Command::new("sh");
            let read = shell
                .arg("-c")
                .arg(format!("printf %s {}", shell_word(text)));
            assert_eq!(read.output().unwrap().stdout, text.as_bytes());
        }
        assert_eq!(shell_word("/mnt/usb"), "/mnt/usb");
    }
}
