package limits

import "time"

// Bounds of the worker's options.
const (
	// MaxConcurrency bounds the option --concurrency. Each capture may have a thread, and its part of CaptureBytes.
	MaxConcurrency = 256
	// MaxGivenSessions bounds the option --sessions: these sessions use connection slots of the server.
	MaxGivenSessions = 100
	// MinRecordSize is the least value of --record-size, in bytes. A smaller value would keep nothing, or only minutes.
	MinRecordSize = 1 << 20
	// MinRecordKeep is the least value of --record-keep. A smaller value would keep nothing that a reader can ask for.
	MinRecordKeep = time.Minute
	// MaxUserID is the largest user id of the kernel; the next value means none.
	MaxUserID = 1<<32 - 2
	// MinPort is the lowest port of --listen, except 0 for any free port. The worker has no right to use lower ports.
	MinPort = 1024
)
