package state

// Offsets in PgBackendStatus (backend_status.h), alike in 14 to 19 on 64-bit machines.
const (
	stChangecount             = 0
	stProcpid                 = 4
	stBackendType             = 8
	stProcStartTimestamp      = 16
	stXactStartTimestamp      = 24
	stActivityStartTimestamp  = 32
	stStateStartTimestamp     = 40
	stDatabaseid              = 48
	stUserid                  = 52
	stClientaddr              = 56
	stState                   = 232
	stAppname                 = 240
	stActivityRaw             = 248
	stProgressCommand         = 256
	stProgressCommandTarget   = 260
	stProgressParam           = 264
	stQueryID                 = 424
	nameDataLen               = 64
	progressParams            = 20
	bgwType, bgwTypeLen       = 96, 96
	typicalSize, sizeFrom18   = 432, 440
	firstVersionWithNewStatus = 18
)

// offsets depend on the major version.
type offsets struct {
	// waitStart and lockGroupLeader are offsets in PGPROC (proc.h); 0: not known.
	waitStart, lockGroupLeader int
	// databaseName and userName are offsets in Port (libpq-be.h).
	databaseName, userName int
}

//nolint:gochecknoglobals // a table
var versions = map[int]offsets{
	14: {waitStart: 136, lockGroupLeader: 840, databaseName: 328, userName: 336},
	15: {waitStart: 136, lockGroupLeader: 840, databaseName: 328, userName: 336},
	16: {waitStart: 136, lockGroupLeader: 840, databaseName: 328, userName: 336},
	17: {waitStart: 136, lockGroupLeader: 848, databaseName: 320, userName: 328},
	18: {waitStart: 136, lockGroupLeader: 792, databaseName: 384, userName: 392},
	19: {databaseName: 384, userName: 392},
}

// sizeOf returns the size of PgBackendStatus.
func sizeOf(version int) int {
	if version >= firstVersionWithNewStatus {
		return sizeFrom18
	}
	return typicalSize
}
