//! The files of one stream of a job: its head, and the last one to two segments of the rest.
//!
//! Owns: which file the next byte goes to, and that no more is kept than a head and two segments. A file is made when
//! there is a byte for it: most jobs say little, and many nothing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

use lodge_link::segment_name;

use crate::captured::NextBytes;
use crate::execs;
use crate::sys;

/// How much of a stream is kept: this many bytes of its beginning, and at its end one to two segments of that length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamLayout {
    pub(crate) head: u64,
    pub(crate) segment: u64,
}

/// The files of one stream.
#[derive(Debug)]
pub(crate) struct StreamFiles {
    dir: Rc<OwnedFd>,
    /// That of the head, with which the names of the segments begin.
    name: &'static str,
    layout: StreamLayout,
    file: Option<File>,
    part: CurrentFile,
    /// Bytes in that part.
    len: u64,
    /// Where the segment before the one that is written begins.
    previous: Option<u64>,
}

/// The file that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CurrentFile {
    Head,
    Segment {
        base: u64,
    },
    /// None: the next segment begins at `base`, some behind the one that began at `last`.
    Skipped {
        base: u64,
        last: Option<u64>,
    },
}

impl StreamFiles {
    pub(crate) fn new(dir: Rc<OwnedFd>, name: &'static str, layout: StreamLayout) -> StreamFiles {
        StreamFiles { dir, name, layout, file: None, part: CurrentFile::Head, len: 0, previous: None }
    }

    pub(crate) fn next(&self) -> NextBytes {
        let room = self.room();
        match &self.file {
            Some(file) if room > 0 => NextBytes::Into { file: file.as_raw_fd(), room },
            None if room > 0 => NextBytes::Begin { room },
            Some(_) | None if self.layout.segment > 0 => NextBytes::Begin { room: self.layout.segment },
            Some(_) | None => NextBytes::Drop,
        }
    }

    /// Writes bytes that fit into what is open, or into what has to be begun.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() || self.room() == 0 {
            self.begin()?;
        }
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Counts bytes that were written, and returns how many are kept now.
    pub(crate) fn count_written(&mut self, bytes: u64) -> u64 {
        self.len += bytes;
        match self.part {
            CurrentFile::Head => self.len,
            CurrentFile::Segment { base } => {
                self.layout.head + (base - self.previous.unwrap_or(base)) + self.len
            }
            CurrentFile::Skipped { .. } => self.layout.head,
        }
    }

    /// Of the bytes that wait at the start of a segment, how many need no file, because two complete segments follow
    /// them. So a program that writes much output of which little is kept is not slowed down by files that would be
    /// dropped.
    pub(crate) fn needless(&self, waiting: u64) -> u64 {
        match waiting.checked_div(self.layout.segment) {
            Some(segments) if self.room() == 0 => segments.saturating_sub(2) * self.layout.segment,
            Some(_) | None => 0,
        }
    }

    /// These bytes get no file. The segments that they push out are removed when the next segment exists.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.part = match self.part {
            CurrentFile::Head => CurrentFile::Skipped { base: self.len + bytes, last: None },
            CurrentFile::Segment { base } => {
                CurrentFile::Skipped { base: base + self.len + bytes, last: Some(base) }
            }
            CurrentFile::Skipped { base, last } => CurrentFile::Skipped { base: base + bytes, last },
        };
        (self.file, self.len) = (None, 0);
    }

    fn room(&self) -> u64 {
        let most = match self.part {
            CurrentFile::Head => self.layout.head,
            CurrentFile::Segment { .. } => self.layout.segment,
            CurrentFile::Skipped { .. } => 0,
        };
        most.saturating_sub(self.len)
    }

    /// Makes the next file. The segments before the last one go, so that there are never more than two.
    fn begin(&mut self) -> io::Result<()> {
        let (base, last, passed) = match self.part {
            CurrentFile::Head if self.room() > 0 => {
                self.file = Some(execs::create_output(&self.dir, self.name)?.into());
                return Ok(());
            }
            CurrentFile::Head => (self.len, None, None),
            CurrentFile::Segment { base } => (base + self.len, Some(base), None),
            CurrentFile::Skipped { base, last } => (base, None, last),
        };
        self.file = Some(execs::create_output(&self.dir, &segment_name(self.name, base))?.into());
        let oldest = std::mem::replace(&mut self.previous, last);
        oldest.into_iter().chain(passed).try_for_each(|base| self.unlink(base))?;
        (self.part, self.len) = (CurrentFile::Segment { base }, 0);
        Ok(())
    }

    fn unlink(&self, base: u64) -> io::Result<()> {
        let name = sys::c_string(segment_name(self.name, base).as_ref())?;
        match sys::unlink_at(self.dir.as_fd(), &name, 0) {
            Ok(()) => Ok(()),
            // The process that stored it elsewhere removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use super::*;
    use crate::captured::{PipeFlow, SplicePipes, StreamCapture, StreamTarget};

    /// A directory of its own for each test, which goes with it.
    struct ScratchDir(PathBuf);

    impl ScratchDir {
        fn new(name: &str) -> ScratchDir {
            let dir = std::env::temp_dir().join(format!("keeper-parts-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            ScratchDir(dir)
        }

        fn parts(&self, layout: StreamLayout) -> StreamFiles {
            StreamFiles::new(Rc::new(sys::open_path(self.0.as_os_str()).unwrap()), "stdout", layout)
        }

        fn files(&self) -> BTreeMap<String, String> {
            let entries = std::fs::read_dir(&self.0).unwrap().flatten();
            let text = |path| std::fs::read_to_string(path).unwrap();
            entries.map(|file| (file.file_name().into_string().unwrap(), text(file.path()))).collect()
        }
    }

    impl Drop for ScratchDir {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn files<const N: usize>(files: [(&str, &str); N]) -> BTreeMap<String, String> {
        files.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
    }

    /// Has these bytes captured from a pipe, all at once.
    fn capture(captured: &mut StreamCapture, bytes: &[u8]) -> PipeFlow {
        let (ours, theirs) = sys::pipe().unwrap();
        sys::set_nonblocking(ours.as_fd()).unwrap();
        assert_eq!(sys::write(theirs.as_fd(), bytes).unwrap(), bytes.len());
        drop(theirs);
        captured.pipe = Some(ours);
        let ways = SplicePipes::open().unwrap();
        loop {
            match captured.pump(&ways) {
                PipeFlow::More => {}
                over @ (PipeFlow::Dry | PipeFlow::Ended) => return over,
            }
        }
    }

    #[test]
    fn the_head_and_the_last_one_to_two_segments_are_kept_and_nothing_else_is() {
        let scratch = ScratchDir::new("kept");
        let mut captured = StreamCapture::new(
            None,
            StreamTarget::Parts(scratch.parts(StreamLayout { head: 3, segment: 2 })),
        );
        let steps: [(&str, u64, BTreeMap<String, String>); 7] = [
            ("", 0, files([])),
            ("ab", 2, files([("stdout", "ab")])),
            ("c", 3, files([("stdout", "abc")])),
            ("d", 4, files([("stdout", "abc"), ("stdout.3", "d")])),
            ("ef", 6, files([("stdout", "abc"), ("stdout.3", "de"), ("stdout.5", "f")])),
            ("gh", 6, files([("stdout", "abc"), ("stdout.5", "fg"), ("stdout.7", "h")])),
            ("ijklmno", 7, files([("stdout", "abc"), ("stdout.11", "lm"), ("stdout.13", "no")])),
        ];
        let mut seen = 0;
        for (bytes, kept, expected) in steps {
            assert_eq!(capture(&mut captured, bytes.as_bytes()), PipeFlow::Ended);
            seen += bytes.len() as u64;
            assert_eq!((captured.counted.seen, captured.counted.kept), (seen, kept), "{bytes}");
            assert_eq!(scratch.files(), expected, "{bytes}");
        }
    }

    #[test]
    fn without_segments_the_head_alone_is_kept_and_without_a_head_the_end() {
        for (name, layout, expected) in [
            ("head", StreamLayout { head: 4, segment: 0 }, files([("stdout", "abcd")])),
            ("tail", StreamLayout { head: 0, segment: 4 }, files([("stdout.4", "efgh"), ("stdout.8", "ij")])),
            ("none", StreamLayout { head: 0, segment: 0 }, files([])),
        ] {
            let scratch = ScratchDir::new(name);
            let mut captured = StreamCapture::new(None, StreamTarget::Parts(scratch.parts(layout)));
            capture(&mut captured, b"abcdefghij");
            assert_eq!(captured.counted.seen, 10);
            assert_eq!(scratch.files(), expected, "{name}");
        }
    }

    #[test]
    fn a_segment_that_cannot_be_made_ends_what_is_kept_and_not_the_stream() {
        let scratch = ScratchDir::new("trouble");
        // A foreign file has the name of the second segment.
        std::fs::write(scratch.0.join("stdout.5"), "x").unwrap();
        let mut captured = StreamCapture::new(
            None,
            StreamTarget::Parts(scratch.parts(StreamLayout { head: 3, segment: 2 })),
        );
        assert_eq!(capture(&mut captured, b"abcdefgh"), PipeFlow::Ended);
        assert_eq!((captured.counted.seen, captured.counted.kept), (8, 5));
        assert!(captured.trouble.is_some());
        let expected = files([("stdout", "abc"), ("stdout.3", "de"), ("stdout.5", "x")]);
        assert_eq!(scratch.files(), expected);
    }

    #[test]
    fn no_file_is_made_for_what_would_go_again_at_once() {
        let scratch = ScratchDir::new("skipped");
        let layout = StreamLayout { head: 3, segment: 2 };
        let mut captured = StreamCapture::new(None, StreamTarget::Parts(scratch.parts(layout)));
        capture(&mut captured, b"abcdefg");
        // Prevents an implementation that creates a file for each segment.
        std::fs::write(scratch.0.join("stdout.9"), "x").unwrap();
        capture(&mut captured, &[b'-'; 1001]);
        std::fs::remove_file(scratch.0.join("stdout.9")).unwrap();
        assert!(captured.trouble.is_none());
        assert_eq!((captured.counted.seen, captured.counted.kept), (1008, 6));
        assert_eq!(scratch.files(), files([("stdout", "abc"), ("stdout.1005", "--"), ("stdout.1007", "-")]));
        capture(&mut captured, b"yz");
        assert_eq!((captured.counted.seen, captured.counted.kept), (1010, 6));
        assert_eq!(scratch.files(), files([("stdout", "abc"), ("stdout.1007", "-y"), ("stdout.1009", "z")]));
    }

    #[test]
    fn a_segment_that_somebody_took_elsewhere_is_not_missed() {
        let scratch = ScratchDir::new("taken");
        let mut captured = StreamCapture::new(
            None,
            StreamTarget::Parts(scratch.parts(StreamLayout { head: 1, segment: 1 })),
        );
        capture(&mut captured, b"abc");
        std::fs::remove_file(scratch.0.join("stdout.1")).unwrap();
        let head = File::options().write(true).open(scratch.0.join("stdout")).unwrap();
        head.write_all_at(b"-", 0).unwrap();
        capture(&mut captured, b"d");
        assert!(captured.trouble.is_none());
        assert_eq!(scratch.files(), files([("stdout", "-"), ("stdout.2", "c"), ("stdout.3", "d")]));
    }
}
