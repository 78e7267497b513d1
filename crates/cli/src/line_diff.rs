//! What changed between two texts, line by line. Pure.

/// Lines of context before and after a change.
const AROUND: usize = 2;
/// Above this many comparisons the texts are shown as replaced: they have little in common, and the comparison would
/// take too long.
const CELLS_MAX: usize = 4_000_000;

/// One line of both texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiffLine<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
    /// This many equal lines.
    Skipped(usize),
}

/// The lines that differ, with a few around them.
pub(crate) fn line_diff<'a>(before: &'a str, after: &'a str) -> Vec<DiffLine<'a>> {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let shorter = before.len().min(after.len());
    let head = (0..shorter).take_while(|at| before[*at] == after[*at]).count();
    let tail = (0..shorter - head)
        .take_while(|at| before[before.len() - 1 - at] == after[after.len() - 1 - at])
        .count();
    let mut all: Vec<DiffLine<'a>> = before[..head].iter().map(|line| DiffLine::Same(line)).collect();
    all.extend(between(&before[head..before.len() - tail], &after[head..after.len() - tail]));
    all.extend(before[before.len() - tail..].iter().map(|line| DiffLine::Same(line)));
    shortened(&all)
}

/// The changes with the longest part that stays.
fn between<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<DiffLine<'a>> {
    let (rows, columns) = (before.len() + 1, after.len() + 1);
    if rows.saturating_mul(columns) > CELLS_MAX {
        let gone = before.iter().map(|line| DiffLine::Gone(line));
        return gone.chain(after.iter().map(|line| DiffLine::New(line))).collect();
    }
    // How many lines from here on can stay.
    let mut stay = vec![0_u32; rows * columns];
    for row in (0..before.len()).rev() {
        for column in (0..after.len()).rev() {
            stay[row * columns + column] = if before[row] == after[column] {
                stay[(row + 1) * columns + column + 1] + 1
            } else {
                stay[(row + 1) * columns + column].max(stay[row * columns + column + 1])
            };
        }
    }
    let (mut row, mut column, mut lines) = (0, 0, Vec::new());
    while row < before.len() || column < after.len() {
        let both = row < before.len() && column < after.len();
        if both && before[row] == after[column] {
            lines.push(DiffLine::Same(before[row]));
            (row, column) = (row + 1, column + 1);
        } else if row < before.len()
            && (column == after.len()
                || stay[(row + 1) * columns + column] >= stay[row * columns + column + 1])
        {
            lines.push(DiffLine::Gone(before[row]));
            row += 1;
        } else {
            lines.push(DiffLine::New(after[column]));
            column += 1;
        }
    }
    lines
}

/// Leaves out what is far from any change.
fn shortened<'a>(all: &[DiffLine<'a>]) -> Vec<DiffLine<'a>> {
    let is_change = |line: &DiffLine<'_>| matches!(line, DiffLine::Gone(_) | DiffLine::New(_));
    let near = |at: usize| {
        let (from, to) = (at.saturating_sub(AROUND), (at + AROUND + 1).min(all.len()));
        all[from..to].iter().any(is_change)
    };
    let (mut lines, mut skipped) = (Vec::new(), 0);
    for (at, line) in all.iter().enumerate() {
        if near(at) {
            lines.extend((skipped > 0).then_some(DiffLine::Skipped(skipped)));
            skipped = 0;
            lines.push(*line);
        } else {
            skipped += 1;
        }
    }
    lines.extend((skipped > 0).then_some(DiffLine::Skipped(skipped)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(before: &str, after: &str) -> String {
        let line = |line: &DiffLine<'_>| match line {
            DiffLine::Same(text) => format!(" {text}"),
            DiffLine::Gone(text) => format!("-{text}"),
            DiffLine::New(text) => format!("+{text}"),
            DiffLine::Skipped(count) => format!("@{count}"),
        };
        line_diff(before, after).iter().map(line).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn a_change_is_reported_with_what_stands_around_it() {
        assert_eq!(told("a\nb\nc\nd\ne\nf\ng", "a\nb\nc\nX\ne\nf\ng"), "@1| b| c|-d|+X| e| f|@1");
        assert_eq!(told("a\nb", "a\nb\nc"), " a| b|+c");
        assert_eq!(told("", "a\nb"), "+a|+b");
        assert_eq!(told("a\nb", ""), "-a|-b");
        assert_eq!((told("a", "a"), told("", "")), ("@1".into(), String::new()));
    }

    #[test]
    fn lines_that_stay_are_not_reported_as_changed() {
        assert_eq!(told("a\nb\nc", "c\na\nb"), "+c| a| b|-c");
        assert_eq!(told("a\na\nb", "a\nb"), " a|-a| b");
    }

    #[test]
    fn both_texts_can_be_read_out_of_every_difference() {
        let letters = ["a", "b", "c"];
        // All texts of up to five lines of three kinds.
        let texts: Vec<String> = (0..=5_u32)
            .flat_map(|lines| {
                (0..3_u32.pow(lines)).map(move |mut number| {
                    let line = |_| {
                        let letter = letters[number as usize % 3];
                        number /= 3;
                        letter
                    };
                    (0..lines).map(line).collect::<Vec<_>>().join("\n")
                })
            })
            .collect();
        for before in texts.iter().step_by(7) {
            for after in texts.iter().step_by(3) {
                let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
                let lines = between(&old, &new);
                let side = |keep: fn(&DiffLine<'_>) -> bool| -> Vec<String> {
                    let text = |line: &DiffLine<'_>| match line {
                        DiffLine::Same(text) | DiffLine::Gone(text) | DiffLine::New(text) => {
                            (*text).to_owned()
                        }
                        DiffLine::Skipped(_) => unreachable!("nothing is left out here"),
                    };
                    lines.iter().filter(|line| keep(line)).map(text).collect()
                };
                assert_eq!(side(|line| !matches!(line, DiffLine::New(_))), old);
                assert_eq!(side(|line| !matches!(line, DiffLine::Gone(_))), new);
            }
        }
    }

    #[test]
    fn texts_that_are_long_and_have_nothing_in_common_are_replaced() {
        let long = |word: &str| (0..3_000).map(|n| format!("{word}{n}\n")).collect::<String>();
        let lines = line_diff(&long("a"), &long("b")).len();
        assert_eq!(lines, 6_000);
    }
}
