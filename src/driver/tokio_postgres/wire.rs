//! Reading message boundaries of the Postgres protocol from bytes in any chunks.
//!
//! Nothing is copied and nothing is allocated, whatever a length field claims. A message is a type
//! byte, a length that counts itself (4 bytes, big endian), and a payload; only the first message of
//! a client, the startup message, has no type byte.

/// What is known of the message that is passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Its type byte; 0 for the startup message.
    pub(super) tag: u8,
    /// The first byte of its payload, if it has one.
    pub(super) first: Option<u8>,
    /// The process id that the key for cancel requests begins with.
    pub(super) pid: Option<i32>,
}

/// Where in a message the next byte belongs.
#[derive(Clone, Copy, Debug)]
enum At {
    Tag,
    Length {
        tag: u8,
        got: u8,
        value: u32,
    },
    First {
        tag: u8,
        left: u32,
    },
    /// In the process id of a key; `left` counts what comes after the byte that is next.
    Pid {
        left: u32,
        got: u8,
        value: u32,
    },
    Payload {
        left: u32,
    },
    /// A length below 4: from here on nothing can be known.
    Lost,
}

const LENGTH_BYTES: u8 = 4;

/// BackendKeyData.
const KEY: u8 = b'K';
const PID_BYTES: u8 = 4;

/// Cuts a byte stream into messages.
#[derive(Debug)]
pub(super) struct Frames {
    at: At,
}

impl Frames {
    /// The stream of a server.
    pub(super) fn of_server() -> Self {
        Self { at: At::Tag }
    }

    /// The stream of a client, which begins with a message without a type byte.
    pub(super) fn of_client() -> Self {
        Self { at: length_of(0) }
    }

    /// Whether an impossible length was seen.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.at, At::Lost)
    }

    /// Calls `seen` for each message of which the first payload byte (of a key, the last of its process id; without
    /// a payload, that of the length) is in `bytes`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut seen: impl FnMut(Frame)) {
        while let Some((byte, rest)) = bytes.split_first() {
            match self.at {
                At::Payload { left } => {
                    let skip = (left as usize).min(bytes.len());
                    bytes = &bytes[skip..];
                    self.at = payload(left - u32::try_from(skip).unwrap_or(left));
                    continue;
                }
                At::Tag => self.at = length_of(*byte),
                At::Length { tag, got, value } => {
                    self.length_byte(tag, got + 1, value << 8 | u32::from(*byte), &mut seen);
                }
                At::First { tag: KEY, left } if left >= u32::from(PID_BYTES) => {
                    self.pid_byte(left, 1, u32::from(*byte), &mut seen);
                }
                At::First { tag, left } => {
                    let (first, pid) = (Some(*byte), None);
                    seen(Frame { tag, first, pid });
                    self.at = payload(left - 1);
                }
                At::Pid { left, got, value } => {
                    self.pid_byte(left, got + 1, value << 8 | u32::from(*byte), &mut seen);
                }
                At::Lost => return,
            }
            bytes = rest;
        }
    }

    fn pid_byte(&mut self, left: u32, got: u8, value: u32, seen: &mut impl FnMut(Frame)) {
        self.at = if got < PID_BYTES {
            let left = left - 1;
            At::Pid { left, got, value }
        } else {
            let [first, ..] = value.to_be_bytes();
            seen(Frame {
                tag: KEY,
                first: Some(first),
                pid: Some(value.cast_signed()),
            });
            payload(left - 1)
        };
    }

    fn length_byte(&mut self, tag: u8, got: u8, value: u32, seen: &mut impl FnMut(Frame)) {
        self.at = if got < LENGTH_BYTES {
            At::Length { tag, got, value }
        } else {
            match value.checked_sub(u32::from(LENGTH_BYTES)) {
                None => At::Lost,
                Some(0) => {
                    seen(Frame {
                        tag,
                        first: None,
                        pid: None,
                    });
                    At::Tag
                }
                Some(left) => At::First { tag, left },
            }
        };
    }
}

fn length_of(tag: u8) -> At {
    At::Length {
        tag,
        got: 0,
        value: 0,
    }
}

fn payload(left: u32) -> At {
    if left == 0 {
        At::Tag
    } else {
        At::Payload { left }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(tag: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len() + 4).unwrap();
        let mut bytes = vec![tag];
        bytes.extend(length.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn frames(mut frames: Frames, chunks: &[&[u8]]) -> Vec<Frame> {
        let mut all = Vec::new();
        for chunk in chunks {
            frames.feed(chunk, |frame| all.push(frame));
        }
        all
    }

    #[test]
    fn the_startup_message_has_no_type_byte() {
        let mut bytes = vec![0, 0, 0, 9, 0, 3, 0, 0, 0];
        bytes.extend(message(b'Q', b"SELECT 1\0"));
        let seen = frames(Frames::of_client(), &[&bytes]);
        let tags: Vec<u8> = seen.iter().map(|frame| frame.tag).collect();
        assert_eq!(tags, [0, b'Q']);
    }

    #[test]
    fn an_impossible_length_ends_the_reading() {
        let mut server = Frames::of_server();
        server.feed(b"Z\0\0\0\x03I", |_| panic!("no message"));
        assert!(server.is_lost());
        server.feed(&message(b'Z', b"I"), |_| panic!("nothing can be known"));
    }

    #[test]
    fn a_huge_length_is_only_counted() {
        let mut server = Frames::of_server();
        let mut seen = 0;
        server.feed(b"D\xff\xff\xff\xffx", |_| seen += 1);
        server.feed(&[b'Z'; 1 << 16], |_| seen += 1);
        assert_eq!((seen, server.is_lost()), (1, false));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_chunking_of_a_conversation_gives_the_same_messages(
            messages in prop::collection::vec((prop_oneof![any::<u8>(), Just(KEY)], prop::collection::vec(any::<u8>(), 0..40)), 0..20),
            cuts in prop::collection::vec(0usize..2000, 0..30),
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(|(tag, body)| message(*tag, body)).collect();
            let expected: Vec<Frame> = messages
                .iter()
                .map(|(tag, body)| {
                    let pid = body.first_chunk().filter(|_| *tag == KEY);
                    Frame { tag: *tag, first: body.first().copied(), pid: pid.copied().map(i32::from_be_bytes) }
                })
                .collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(frames(Frames::of_server(), &chunks), expected);
        }

        #[test]
        fn hostile_bytes_never_panic(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)) {
            let mut client = Frames::of_client();
            let mut server = Frames::of_server();
            for chunk in &chunks {
                client.feed(chunk, |_| ());
                server.feed(chunk, |_| ());
            }
        }
    }
}
