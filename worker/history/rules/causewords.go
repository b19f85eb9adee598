package rules

import (
	"fmt"
	"time"
)

// CauseWords describes a cause (Finding.Cause) for people, with times in UTC: "process 4711, transaction since 2026-11-29 03:00:12
// UTC". Two causes can have the same words. A cause without a description is returned as it is.
func CauseWords(cause string) string {
	var pid int32
	var start, xact int64
	if n, _ := fmt.Sscanf(cause, identityFormat, &pid, &start, &xact); n > 2 && fmt.Sprintf(identityFormat, pid, start, xact) == cause {
		const seconds = "2006-01-02 15:04:05 UTC"
		if xact > 0 {
			return fmt.Sprintf("process %d, transaction since %s", pid, time.UnixMicro(xact).UTC().Format(seconds))
		}
		return fmt.Sprintf("process %d, started %s", pid, time.UnixMicro(start).UTC().Format(seconds))
	}
	switch cause {
	case causeStandby:
		return "synchronous standby"
	case causeDisk:
		return "disk or network file system"
	case causeStarved:
		return "overloaded host"
	case causeConnections:
		return "connection slots"
	}
	return cause
}
