package layout

// Control is the layout of the control file (ControlFileData in pg_control.h). It is the same in all format versions
// (PG_CONTROL_VERSION) from Least to Most: those of PostgreSQL 11 to 19 (19rc1 has 1905).
//
//nolint:gochecknoglobals // a table
var Control = struct {
	// SystemIdentifier and Version are offsets in every format. Checkpoint is the position of the last checkpoint, and
	// Timeline is the timeline in the copy of this checkpoint's record.
	SystemIdentifier, Version, Checkpoint, Timeline int
	Least, Most                                     uint32
}{
	SystemIdentifier: 0, Version: 8, Checkpoint: 32, Timeline: 48,
	Least: 1100, Most: 1999,
}
