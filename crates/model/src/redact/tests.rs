use super::*;

const KEY: &str = "sk-canary-0123456789abcdef";

fn redactor() -> Redactor {
    Redactor::new([KEY])
}

fn base64(bytes: &[u8]) -> String {
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for at in 0..4 {
            let letter = BASE64[(bits >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= group.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text loses the key and nothing else, whole and in parts, inside other text.
#[track_caller]
fn gone(form: &str) {
    let redactor = redactor();
    let text = format!("before: {form} :after");
    let shown = redactor.redact(text.clone());
    assert_eq!(shown, "before: [secret] :after", "{form}");
    let letters: Vec<char> = text.chars().collect();
    for cut in 0..=letters.len() {
        let (first, second) = letters.split_at(cut);
        let mut stream = RedactedStream::default();
        let mut whole = stream.push(&redactor, &String::from_iter(first));
        whole += &stream.push(&redactor, &String::from_iter(second));
        whole += &stream.finish(&redactor);
        assert_eq!(whole, shown, "{form} cut at {cut}");
    }
    let mut stream = RedactedStream::default();
    let one_by_one: String =
        letters.iter().map(|letter| stream.push(&redactor, &letter.to_string())).collect();
    assert_eq!(one_by_one + &stream.finish(&redactor), shown, "{form} letter by letter");
}

#[test]
fn a_key_is_found_as_it_is_and_percent_encoded() {
    gone(KEY);
    gone(&KEY.replace('-', "%2D"));
    gone(&KEY.replace('-', "%2d").replace('k', "%6B").replace('a', "%61"));
    gone(&KEY.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>());
}

#[test]
fn a_key_is_found_in_hexadecimal() {
    let plain = hex(KEY.as_bytes());
    gone(&plain);
    gone(&plain.to_uppercase());
    let pairs: Vec<&str> = (0..plain.len()).step_by(2).map(|at| &plain[at..at + 2]).collect();
    gone(&pairs.join(" "));
    gone(&pairs.join(":"));
    gone(&pairs.join("\n"));
    let escaped: String = pairs.iter().map(|pair| format!("\\x{pair}")).collect();
    assert!(!redactor().redact(escaped).contains("7365"));
    let listed = pairs.iter().map(|pair| format!("0x{pair}")).collect::<Vec<_>>().join(", ");
    assert!(redactor().redact(listed).contains("[secret]"));
}

#[test]
fn a_key_is_found_in_base64_wherever_it_stands_in_it() {
    for before in ["", "u", "us", "use", "user:", "Bearer ", "Authorization: Bearer "] {
        for after in ["", "\n", "xy", "xyz and more"] {
            let whole = base64(format!("{before}{KEY}{after}").as_bytes());
            for form in [
                whole.clone(),
                whole.trim_end_matches('=').to_owned(),
                whole.replace('+', "-").replace('/', "_"),
                whole.as_bytes().chunks(7).map(|line| String::from_utf8_lossy(line) + "\n").collect(),
            ] {
                let shown = redactor().redact(form.clone());
                assert!(shown.contains("[secret]"), "{form}");
                // Of the letters with bits of the key nothing is left, in any alignment.
                for at in 0..KEY.len() - 5 {
                    for alignment in 0..3 {
                        let (letters, _) = base64_at(&KEY.as_bytes()[at..at + 5], alignment);
                        let letters = String::from_utf8(letters).unwrap();
                        assert!(!shown.contains(&letters), "{letters} of {form} in {shown}");
                    }
                }
            }
        }
    }
    let alone = base64(KEY.as_bytes());
    gone(alone.trim_end_matches('='));
}

#[test]
fn a_key_is_found_when_it_is_split() {
    let (first, second) = KEY.split_at(11);
    for between in [" ", "\n", "\r\n  ", "\" + \"", "' + '", "\\n", "\", \"", "`", "\u{200b}"] {
        gone(&format!("{first}{between}{second}"));
    }
    gone(&KEY.chars().map(String::from).collect::<Vec<_>>().join(" "));
    let encoded = base64(KEY.as_bytes());
    let (first, second) = encoded.trim_end_matches('=').split_at(9);
    gone(&format!("{first}\" \"{second}"));
    // Parts that are far apart are not one key.
    let apart = format!("{} {} {}", &KEY[..11], "x ".repeat(40), &KEY[11..]);
    assert_eq!(redactor().redact(apart.clone()), apart);
}

#[test]
fn ordinary_text_stays_as_it_is() {
    let text = "Sky canaries sing; sk- is how keys begin, and sk-canary-0123 is half of one.\n\
        fn main() { println!(\"{}\", 0x7365 + 41); } 73 65 73 68 %73%6B%2D c2stY2FuYXJ5 \u{1f469}\u{200d}\u{1f4bb} שלום\n";
    assert_eq!(redactor().redact(text.to_owned()), text);
    let mut stream = RedactedStream::default();
    let shown: String = text.chars().map(|letter| stream.push(&redactor(), &letter.to_string())).collect();
    assert_eq!(shown + &stream.finish(&redactor()), text);
}

#[test]
fn short_keys_are_found_as_they_are_and_the_shortest_not_at_all() {
    let redactor = Redactor::new(["abc", "hunter2", ""]);
    let text = |text: &str| redactor.redact(text.to_owned());
    assert_eq!(text("abc hunter2 hun ter2"), "abc [secret] hun ter2");
    assert_eq!(text(&base64(b"hunter2")), base64(b"hunter2"));
    let mut stream = RedactedStream::default();
    assert_eq!(stream.push(&redactor, "is hunt"), "is ");
    assert_eq!(stream.push(&redactor, "er2!") + &stream.finish(&redactor), "[secret]!");
    assert!(Redactor::new([]).is_empty() && Redactor::default().redact("x".to_owned()) == "x");
}

#[test]
fn several_keys_are_found_also_when_one_is_a_part_of_another() {
    let longer = format!("{KEY}-and-more");
    let redactor = Redactor::new([KEY, longer.as_str(), "0123456789abcdef"]);
    assert_eq!(redactor.redact(format!("<{longer}> <{KEY}>")), "<[secret]> <[secret]>");
    assert_eq!(redactor.redact("x0123456789abcdefx".to_owned()), "x[secret]x");
    let mut stream = RedactedStream::default();
    let shown: String =
        format!("<{longer}>").chars().map(|letter| stream.push(&redactor, &letter.to_string())).collect();
    assert_eq!(shown + &stream.finish(&redactor), "<[secret]>");
}

#[test]
fn the_work_grows_with_the_text_and_not_with_what_looks_like_a_key() {
    // Texts that repeat the start of a key. A search that starts again each time would not end.
    for piece in
        ["sk-canary-", "sk-canary-0123456789abcde ", "736b2d63", "c2stY2FuYXJ5LTAx", "%73%6b", "\\", "0x"]
    {
        let text = piece.repeat(20_000);
        let redactor = redactor();
        assert_eq!(redactor.redact(text.clone()), text);
        let mut stream = RedactedStream::default();
        let parts = text.as_bytes().chunks(997).map(|part| String::from_utf8_lossy(part).into_owned());
        let shown: String = parts.map(|part| stream.push(&redactor, &part)).collect();
        assert_eq!(shown + &stream.finish(&redactor), text);
    }
}
