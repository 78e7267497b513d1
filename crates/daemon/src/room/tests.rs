//! How much room there is, and what is refused without it.

use super::*;

fn room() -> (tempfile::TempDir, Room) {
    let dir = tempfile::tempdir().unwrap();
    let room = Room::of(dir.path());
    (dir, room)
}

fn blocks(room: &Room) -> u64 {
    room.dir.join(NAME).metadata().map_or(0, |meta| meta.blocks() * BLOCK_BYTES)
}

#[test]
fn the_reserve_takes_room_until_it_is_given_back_and_is_made_again_when_there_is_room() {
    let (_dir, room) = room();
    assert!(!room.give_back(), "there is none yet");
    room.admit(DiskNeed::Room, Timestamp::from_ms(1)).unwrap();
    assert_eq!(blocks(&room), RESERVE_BYTES);
    assert!(room.give_back());
    assert_eq!((blocks(&room), room.give_back()), (0, false));
    room.tend(Timestamp::from_ms(2));
    assert_eq!(
        (blocks(&room), room.view(Timestamp::from_ms(2)).reserve_bytes),
        (RESERVE_BYTES, RESERVE_BYTES)
    );
    assert!(Room::of(&room.dir).give_back(), "the next daemon finds it");
}

#[test]
fn a_job_is_refused_with_numbers_when_less_is_free_than_is_to_stay_so() {
    let (_dir, room) = room();
    room.admit_job(0).unwrap();
    let refused = room.admit_job(u64::MAX).unwrap_err();
    assert_eq!(refused.code(), "job.disk_low");
    assert!(refused.cause().unwrap().contains("MiB free") && refused.hint().is_some());
}

#[test]
fn a_writer_that_can_wait_leaves_room_for_those_that_cannot() {
    let (_dir, room) = room();
    let free = room.free_bytes();
    assert!(room.spares(0) && room.spares(free / 2));
    assert!(!room.spares(u64::MAX) && !room.spares(free.saturating_mul(2)));
}

#[test]
fn a_read_only_daemon_refuses_every_change_until_it_goes_on() {
    let (_dir, room) = room();
    assert_eq!(room.close(Duration::ZERO, Timestamp::from_ms(7)), 0);
    for needs in [DiskNeed::Room, DiskNeed::Record] {
        let refused = room.admit(needs, Timestamp::from_ms(8)).unwrap_err();
        assert_eq!(refused.code(), "daemon.disk_full");
    }
    assert_eq!(room.view(Timestamp::from_ms(2)).state, "read_only");
    assert!(room.refusal().is_some() && room.view(Timestamp::from_ms(2)).since.is_some());
    assert!(room.has_room_again());
    room.reopen(Timestamp::from_ms(9));
    assert!(room.refusal().is_none() && room.view(Timestamp::from_ms(2)).since.is_none());
    room.admit(DiskNeed::Room, Timestamp::from_ms(9)).unwrap();
}

#[test]
fn work_that_finds_no_room_is_done_once_more_with_the_reserve_and_not_a_third_time() {
    let (_dir, room) = room();
    room.admit(DiskNeed::Room, Timestamp::from_ms(1)).unwrap();
    let tries = std::cell::Cell::new(0);
    let full = || -> io::Result<()> {
        tries.set(tries.get() + 1);
        Err(io::ErrorKind::StorageFull.into())
    };
    assert!(room.with_reserve(is_full, full).is_err());
    assert_eq!((tries.get(), blocks(&room)), (2, RESERVE_BYTES));
    assert!(room.with_reserve(is_full, || -> io::Result<()> { Err(io::ErrorKind::Other.into()) }).is_err());
}
