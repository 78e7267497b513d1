//! Reads: one snapshot for each, off the caller's thread, and a refusal when too many wait.

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lodge_core::Timestamp;
use lodge_core::event::DaemonStarted;
use lodge_core::record::{EventRow, Write};
use lodge_store::{OpenedDatabase, READ_QUEUE_MAX, ReadError, open};

const THREADS: usize = 4;

fn event(seq: u64) -> Write {
    Write::Event(EventRow {
        seq,
        stream: "daemon".into(),
        stream_seq: seq,
        at: Timestamp::from_ms(1),
        body: DaemonStarted::default().into(),
    })
}

fn opened() -> (tempfile::TempDir, OpenedDatabase) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
    (dir, store)
}

#[tokio::test]
async fn an_answer_is_of_one_state_whatever_is_committed_meanwhile() {
    let (_dir, mut store) = opened();
    store.writer.commit(&[event(1)], ()).unwrap().into_inner();
    let (begun, is_begun) = channel();
    let (go_on, told) = channel();
    let read = store.reader.read(move |snapshot| {
        let first = snapshot.head()?;
        begun.send(()).unwrap();
        told.recv().unwrap();
        Ok((first, snapshot.head()?, snapshot.events(0, None, 10)?.0.len()))
    });
    let writer = &mut store.writer;
    let commit = async move {
        tokio::task::spawn_blocking(move || is_begun.recv().unwrap()).await.unwrap();
        writer.commit(&[event(2)], ()).unwrap().into_inner();
        go_on.send(()).unwrap();
    };
    let (answer, ()) = tokio::join!(read, commit);
    assert_eq!(answer.unwrap(), (1, 1, 1));
    assert_eq!(store.reader.read(|snapshot| snapshot.head()).await.unwrap(), 2);
    assert_eq!(store.reader.here(|snapshot| snapshot.head()).unwrap(), 2);
}

#[tokio::test]
async fn reads_beyond_the_queue_are_refused_and_the_others_answered() {
    let (_dir, store) = opened();
    let reader = Arc::new(store.reader);
    let barrier = Arc::new(Barrier::new(THREADS + 1));
    let read = |barrier: Option<Arc<Barrier>>| {
        let reader = reader.clone();
        async move {
            let read = reader.read(move |snapshot| {
                if let Some(barrier) = barrier {
                    barrier.wait();
                }
                snapshot.head()
            });
            read.await
        }
    };
    // Polled once and in order, so all of them are submitted before the next line.
    let mut submitted = Vec::new();
    for barrier in std::iter::repeat_n(Some(barrier.clone()), THREADS)
        .chain(std::iter::repeat_n(None, READ_QUEUE_MAX + THREADS))
    {
        let mut read = Box::pin(read(barrier));
        match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => submitted.push(read),
            Poll::Ready(result) => assert!(matches!(result, Err(ReadError::Busy)), "{result:?}"),
        }
    }
    let refused = read(None).await;
    assert!(matches!(refused, Err(ReadError::Busy)), "{refused:?}");
    tokio::task::spawn_blocking(move || barrier.wait()).await.unwrap();
    let answered = submitted.len();
    for read in submitted {
        read.await.unwrap();
    }
    assert!(answered >= READ_QUEUE_MAX, "{answered}");
}

#[tokio::test]
async fn a_read_that_panics_is_an_error_of_its_caller_alone_and_threads_end_with_the_work() {
    let (_dir, store) = opened();
    let broken = store.reader.read(|_| -> Result<(), ReadError> { panic!("a bug") }).await;
    assert!(matches!(broken, Err(ReadError::Failed { .. })), "{broken:?}");
    assert_eq!(store.reader.read(|snapshot| snapshot.head()).await.unwrap(), 0);
    assert!(threads() > 0);
    store.reader.rest();
    let start = Instant::now();
    while threads() > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "{} threads are left", threads());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.reader.read(|snapshot| snapshot.head()).await.unwrap(), 0);
}

/// The threads of this process that read.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "read")
        })
        .count()
}
