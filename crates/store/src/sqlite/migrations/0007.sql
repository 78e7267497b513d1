-- Why a turn is parked, apart from its agent and its slot. An earlier release ignores it and tries at once.
ALTER TABLE turns ADD COLUMN park BLOB;
