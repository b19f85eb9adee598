package naming

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming/symbolize"
)

const (
	// maxPerfMap bounds the size of a perf map, in bytes. maxPerfMaps bounds the number of cached maps.
	maxPerfMap  = 16 << 20
	maxPerfMaps = 8
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

// Read returns the perf map of a process, or nil if the process has none. If the map cannot be used, Read returns nil
// and calls warn with the reason.
func (p *PerfMaps) Read(pid int, warn func(...error)) *symbol.PerfMap {
	table, err := p.read(pid)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, process.ErrGone) {
		warn(fmt.Errorf("perf map of process %d: %w", pid, err))
	}
	return table
}

func (p *PerfMaps) read(pid int) (*symbol.PerfMap, error) {
	f, id, err := openPerfMap(pid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
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
