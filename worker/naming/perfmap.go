package naming

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming/symbolize"
)

const (
	// maxPerfMap bounds the size of a perf map, in bytes. maxPerfMaps bounds the number of cached maps.
	maxPerfMap  = 16 << 20
	maxPerfMaps = 8
	// perfMapSlack is how much earlier than its process a map may seem to be written: clocks of file systems are coarse.
	perfMapSlack = 2 * time.Second
)

// PerfMaps caches the perf maps of processes as long as their files do not change.
type PerfMaps struct {
	mu    sync.Mutex
	byPID map[int]perfMap
}

// perfMap is a parsed map, with the identity and size of its file.
type perfMap struct {
	file  symbolize.FileID
	size  int64
	table *symbol.PerfMap
}

// Read returns the perf map of a process, or nil if the process has none or has not written the file. If the map cannot
// be used, Read returns nil and calls warn with the reason.
func (p *PerfMaps) Read(key ProcessKey, warn func(...error)) *symbol.PerfMap {
	table, err := p.read(key)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, process.ErrGone) {
		warn(fmt.Errorf("perf map of process %d: %w", key.PID, err))
	}
	return table
}

func (p *PerfMaps) read(key ProcessKey) (*symbol.PerfMap, error) {
	pid := key.PID
	f, id, err := openPerfMap(pid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	started, err := wallTime(key.StartTime)
	if err != nil {
		return nil, err
	}
	if info.ModTime().Before(started.Add(-perfMapSlack)) {
		// An earlier process with this id has left the file, or the clock was set forward since the program wrote it.
		return nil, fmt.Errorf("%s is older than the process, and is not used", f.Name())
	}
	if info.Size() > maxPerfMap {
		return nil, fmt.Errorf("%s has more than %d bytes", f.Name(), maxPerfMap)
	}
	p.mu.Lock()
	known, ok := p.byPID[pid]
	p.mu.Unlock()
	if ok && known.file == id && known.size == info.Size() {
		return known.table, nil
	}
	text, err := io.ReadAll(io.LimitReader(f, info.Size()))
	if err != nil {
		return nil, err
	}
	table := symbol.ParsePerfMap(string(text))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.byPID) >= maxPerfMaps || p.byPID == nil {
		p.byPID = make(map[int]perfMap)
	}
	p.byPID[pid] = perfMap{file: id, size: info.Size(), table: table}
	return table, nil
}

// wallTime converts a start time of proc(5), in clock ticks since boot, to a time of the wall clock.
func wallTime(ticks uint64) (time.Time, error) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all supported architectures
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return time.Time{}, fmt.Errorf("reading CLOCK_BOOTTIME: %w", err)
	}
	return time.Now().Add(time.Duration(ticks)*tick - time.Duration(boot.Nano())), nil
}

// openPerfMap opens the map that a process writes to /tmp below its own root directory. All users may create files
// there, so openPerfMap refuses a file that does not belong to the user of the process.
func openPerfMap(pid int) (*os.File, symbolize.FileID, error) {
	status, err := process.ReadStatus(pid)
	if err != nil {
		return nil, symbolize.FileID{}, err
	}
	number := pid
	if n := len(status.NSPID); n > 0 {
		number = status.NSPID[n-1]
	}
	name := fmt.Sprintf("%s/root/tmp/perf-%d.map", symbolize.ProcFolder(pid), number)
	f, id, err := symbolize.Candidate(name).File()
	if err != nil {
		return nil, symbolize.FileID{}, err
	}
	if id.UID != status.UID[1] {
		_ = f.Close()
		return nil, symbolize.FileID{}, fmt.Errorf("%s belongs to user %d, its process to user %d", name, id.UID,
			status.UID[1])
	}
	return f, id, nil
}
