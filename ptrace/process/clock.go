package process

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// BootOffset returns the difference between the boot time clock of a process's children and the host's clock. It is
// not zero in a time namespace (time_namespaces(7)). Start times in /proc are in the clock of the reading process. On
// kernels without time namespaces it is zero. The errors are ErrGone, ErrDenied and ErrFormat.
func BootOffset(pid int) (time.Duration, error) {
	text, err := readFile(procPath(pid, "timens_offsets"))
	if errors.Is(err, ErrGone) {
		if _, err := ReadStat(pid); err == nil {
			return 0, nil // the process lives, so the kernel has no such file
		}
	}
	if err != nil {
		return 0, err
	}
	return ParseBootOffset(text)
}

// ParseBootOffset returns the offset of the boot time clock in timens_offsets. Its lines have a clock, by name or number,
// seconds and nanoseconds.
func ParseBootOffset(text string) (time.Duration, error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "boottime" && f[0] != "7" {
			continue
		}
		seconds, err1 := strconv.ParseInt(f[1], 10, 64)
		nanoseconds, err2 := strconv.ParseInt(f[2], 10, 64)
		const most = math.MaxInt64/int64(time.Second) - 1
		if errors.Join(err1, err2) != nil || seconds > most || seconds < -most ||
			nanoseconds < 0 || nanoseconds >= int64(time.Second) {
			return 0, formatError("time offset", line)
		}
		return time.Duration(seconds)*time.Second + time.Duration(nanoseconds), nil
	}
	return 0, fmt.Errorf("%w: no offset of the clock since boot", ErrFormat)
}
