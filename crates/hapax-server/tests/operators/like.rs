//! Compares the output that a page shows with the actual output.

/// Whether a text matches `expected`, in which `…` stands for anything on a line.
pub fn is_like(expected: &str, text: &str) -> bool {
    let (expected, text): (Vec<_>, Vec<_>) = (
        expected.trim_end().lines().collect(),
        text.trim_end().lines().collect(),
    );
    expected.len() == text.len()
        && expected
            .iter()
            .zip(&text)
            .all(|(expected, line)| is_line_like(expected, line))
}

fn is_line_like(expected: &str, mut line: &str) -> bool {
    let mut pieces = expected.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(rest) = line.strip_prefix(first) else {
        return false;
    };
    line = rest;
    let pieces: Vec<_> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else {
        return line.is_empty();
    };
    for piece in middle {
        let Some(at) = line.find(piece) else {
            return false;
        };
        line = &line[at + piece.len()..];
    }
    line.ends_with(last)
}
