package jitcode

import (
	"fmt"
	"io"
	"os"
	"sync"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/jit"
	"pg_stat_backtrace/worker/symbolize"
)

const (
	// maxPerfMap bounds a perf map that is read, in bytes; maxPerfMaps the maps that are remembered.
	maxPerfMap  = 16 << 20
	maxPerfMaps = 8
)

// PerfMaps remembers the perf maps of processes as long as their files do not change.
type PerfMaps struct {
	mu    sync.Mutex
	byPID map[int]perfMap
}

// perfMap is a map as it was in a file of that identity and size.
type perfMap struct {
	file  symbolize.FileID
	size  int64
	table *jit.PerfMap
}

// Read returns the map of a process; nil if there is none that can be used.
func (p *PerfMaps) Read(pid int) *jit.PerfMap {
	f, id, err := openPerfMap(pid)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || info.Size() > maxPerfMap {
		return nil
	}
	p.mu.Lock()
	known, ok := p.byPID[pid]
	p.mu.Unlock()
	if ok && known.file == id && known.size == info.Size() {
		return known.table
	}
	text, err := io.ReadAll(io.LimitReader(f, info.Size()))
	if err != nil {
		return nil
	}
	table := jit.ParsePerfMap(string(text))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.byPID) >= maxPerfMaps || p.byPID == nil {
		p.byPID = make(map[int]perfMap)
	}
	p.byPID[pid] = perfMap{file: id, size: info.Size(), table: table}
	return table
}

// openPerfMap opens the map that a process writes below its own root directory. Everyone may make files in that
// directory, so a file of another user than the process's is refused.
func openPerfMap(pid int) (*os.File, symbolize.FileID, error) {
	status, err := procfs.ReadStatus(pid)
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
