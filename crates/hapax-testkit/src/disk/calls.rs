//! Parses strace's log: system calls, and the order in which they began and ended.

use std::collections::BTreeMap;

/// One system call.
///
/// If one call ended before another began in the log, it did so on the machine too: strace holds
/// each thread at both ends of each call until it has written the line. The order of overlapping
/// calls is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The thread that made it.
    pub thread: u32,
    /// Its name.
    pub name: String,
    /// Its arguments, as strace spells them.
    pub arguments: Vec<String>,
    /// Its result, as strace spells it; `None` if it never returned.
    pub result: Option<String>,
    /// When it began: a line number of the log.
    pub begun: usize,
    /// When it ended: a line number of the log, or `usize::MAX`.
    pub ended: usize,
}

impl Call {
    /// Whether it returned without an error.
    pub fn has_succeeded(&self) -> bool {
        self.result
            .as_ref()
            .is_some_and(|result| !result.starts_with('-') && !result.starts_with('?'))
    }
}

/// The calls in a log that was written with `-f`, in the order in which they began.
///
/// If the arguments matter, the log must be written with `-xx` too, so that texts contain no commas
/// or equals signs.
pub fn calls(log: &str) -> Vec<Call> {
    let mut begun = BTreeMap::<u32, (usize, String)>::new();
    let mut calls = Vec::new();
    for (number, line) in log.lines().enumerate() {
        let Some((thread, text)) = line.split_once(' ') else {
            continue;
        };
        let (Ok(thread), text) = (thread.parse(), text.trim_start()) else {
            continue;
        };
        if let Some(text) = text.strip_suffix("<unfinished ...>") {
            begun.insert(thread, (number, text.trim_end().to_owned()));
        } else if let Some((_, rest)) = text
            .strip_prefix("<... ")
            .and_then(|text| text.split_once(" resumed>"))
        {
            // A call that began before strace attached is incomplete and not counted.
            if let Some((begin, start)) = begun.remove(&thread) {
                calls.extend(parse(thread, &format!("{start}{rest}"), begin, number));
            }
        } else {
            calls.extend(parse(thread, text, number, number));
        }
    }
    calls.extend(
        begun
            .into_iter()
            .filter_map(|(thread, (begin, text))| parse(thread, &text, begin, usize::MAX)),
    );
    calls.sort_by_key(|call| call.begun);
    calls
}

/// How often each call was made by the thread that made it most often: strace counts for each
/// thread separately.
pub fn most_by_one_thread(calls: &[Call]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::<(u32, &str), usize>::new();
    for call in calls {
        *counts.entry((call.thread, &call.name)).or_default() += 1;
    }
    let mut most = BTreeMap::<String, usize>::new();
    for ((_, name), count) in counts {
        let most = most.entry(name.to_owned()).or_default();
        *most = count.max(*most);
    }
    most
}

fn parse(thread: u32, text: &str, begun: usize, ended: usize) -> Option<Call> {
    let (name, rest) = text.split_once('(')?;
    if name.is_empty()
        || !name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        return None;
    }
    let (arguments, result) = match rest.rsplit_once(" = ") {
        Some((arguments, result)) => (arguments.trim_end(), Some(result.to_owned())),
        None => (rest, None),
    };
    let arguments = arguments.strip_suffix(')').unwrap_or(arguments);
    let arguments = arguments
        .split(", ")
        .filter(|argument| !argument.is_empty())
        .map(str::to_owned)
        .collect();
    // Detached during the call, or killed: the end of the call was not seen.
    let ended = if result.is_some() { ended } else { usize::MAX };
    Some(Call {
        thread,
        name: name.to_owned(),
        arguments,
        result,
        begun,
        ended,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_overlap_keep_their_begin_and_their_end() {
        let log = "7 pwrite64(3</a>, \"\\x68\", 1, 0 <unfinished ...>\n8 fsync(3</a>) = 0\n7 <... pwrite64 resumed>) = 1\n";
        let calls = calls(log);
        assert_eq!(
            calls
                .iter()
                .map(|call| (call.name.as_str(), call.begun, call.ended))
                .collect::<Vec<_>>(),
            [("pwrite64", 0, 2), ("fsync", 1, 1)]
        );
        assert_eq!(calls[0].arguments, ["3</a>", "\"\\x68\"", "1", "0"]);
        assert!(calls[0].has_succeeded());
    }

    #[test]
    fn a_call_that_never_returned_has_no_end() {
        let log = "7 fsync(3</a> <unfinished ...>\n7 +++ killed by SIGKILL +++\n8 <... futex resumed>) = 0\n8 read(0,  <detached ...>\n";
        let calls = calls(log);
        assert_eq!(calls.len(), 2);
        assert!(
            calls
                .iter()
                .all(|call| call.ended == usize::MAX && !call.has_succeeded())
        );
    }
}
