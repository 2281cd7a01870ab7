//! Histories written by hand, each broken in one way; small random ones against brute force; and events as lines.

mod border;
mod brute;
mod forgets;
mod laws;
mod stored;
mod story;

use super::{History, check};
use story::Story;

#[test]
fn events_come_back_from_lines() {
    let mut story = Story::new();
    story.opened(1, 10_000);
    story.ask_with_intent(1, &["write /a/b", "read /c"]);
    story.granted(1, 1, 5, 700);
    story.acquired((1, 1), &["share:3 f"], 5);
    story.renewed(1, 1, "1-4,7-7", super::Change::Put(1));
    story.after(10).back(1, super::How::Dropped);
    let history = story.end();
    let mut lines = Vec::new();
    history.write_lines(&mut lines).unwrap();
    let mut read = History::default();
    read.read_lines(lines.as_slice()).unwrap();
    assert_eq!(read, history);
    assert_eq!(read.digest(), history.digest());
    assert!(history.events.len() > 5);
    assert_eq!(check(&read).events, history.events.len());
    assert!(History::default().read_lines(&b"{\"at\":1}\n"[..]).is_err());
}
